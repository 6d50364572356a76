"""Training on a recorded twin of real desktops, and what of it is left on the real ones."""
