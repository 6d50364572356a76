"""How the shipped checkpoints and the published results are made; not part of the wheel."""
