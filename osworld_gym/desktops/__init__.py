"""Desktops: the contract (base), its checks, and one module per provider, found by name (registry)."""
