"""Metrics of OSWorld, by its names, in modules by what they read."""
