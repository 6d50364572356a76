"""Readers of expert logs: one layer for run folders, a description per runner family, other trajectory formats."""
