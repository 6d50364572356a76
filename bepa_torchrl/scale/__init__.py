"""Rollouts, engines, trainer ranks and stores beyond one process; the core imports nothing of it."""
