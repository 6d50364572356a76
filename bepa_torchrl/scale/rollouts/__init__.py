"""Asynchronous rollouts: a queue of whole groups, workers that lease episodes, a collector that takes the groups."""
