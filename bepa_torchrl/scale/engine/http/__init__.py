"""An engine on another machine, through the wire: the trainer's side (client, remote) and the server."""
