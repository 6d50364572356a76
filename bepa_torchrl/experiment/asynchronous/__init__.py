"""Asynchronous rollouts of an experiment: where they are played, and the program that plays them elsewhere."""
