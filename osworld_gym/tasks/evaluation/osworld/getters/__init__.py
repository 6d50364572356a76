"""Getters of OSWorld, by its `type` names; `ALL` of a module is registered."""
