"""Experiments: typed settings, the components built from them, and the processes that run them."""
