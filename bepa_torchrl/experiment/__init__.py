"""Experiments: typed settings, the components built from them, and the processes that run them.

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.experiment.methods import METHODS, LossKind, Method, SeedSource

__all__ = [
    "METHODS",
    "LossKind",
    "Method",
    "SeedSource",
]

__getattr__ = lazy_names(
    __name__,
    {
        "methods": (
            "METHODS",
            "LossKind",
            "Method",
            "SeedSource",
        ),
    },
)
