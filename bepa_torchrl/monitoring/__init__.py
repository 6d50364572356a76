"""What a run shows while it goes on, and at its end: status, progress, metrics for Prometheus, curves, GIF."""
