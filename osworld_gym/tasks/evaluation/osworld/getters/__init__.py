"""Getters of OSWorld, by its `type` names."""
