"""Desktops: the contract (``base``), its checks, one package per provider, and the registry of providers.

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from osworld_gym.desktops.base import Desktop
    from osworld_gym.desktops.checks import run_checks
    from osworld_gym.desktops.registry import PROVIDERS, make_desktop
    from osworld_gym.desktops.sim import SimDesktop

__all__ = [
    "PROVIDERS",
    "Desktop",
    "SimDesktop",
    "make_desktop",
    "run_checks",
]

__getattr__ = lazy_names(
    __name__,
    {
        "base": ("Desktop",),
        "checks": ("run_checks",),
        "registry": (
            "PROVIDERS",
            "make_desktop",
        ),
        "sim": ("SimDesktop",),
    },
)
