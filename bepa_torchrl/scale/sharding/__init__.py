"""One policy over several processes by FSDP2: sharded weights, an exact gradient step, export and checkpoints."""
