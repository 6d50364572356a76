"""Checkpoints of a policy that is divided over ranks, for another number of them or for one process, and back."""
