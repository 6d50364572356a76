"""An engine on another machine, by HTTP: the trainer's side (client, remote) and the server."""
