"""Policies: the protocols (:mod:`.base`) and the implementation on transformers (:mod:`.transformers`).

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.policies.base import Learner, Renderer, Sampler
    from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy

__all__ = [
    "Learner",
    "Renderer",
    "Sampler",
    "TransformersPolicy",
    "load_policy",
]

__getattr__ = lazy_names(
    __name__,
    {
        "base": ("Learner", "Renderer", "Sampler"),
        "transformers.policy": (
            "TransformersPolicy",
            "load_policy",
        ),
    },
)
