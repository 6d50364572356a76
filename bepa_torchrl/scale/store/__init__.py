"""Object stores and the copy of a run in one of them."""
