"""Training: the trainer, the optimisation step, supervised fine-tuning, checkpoints.

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.training.optimization_step import trainable

__all__ = [
    "trainable",
]

__getattr__ = lazy_names(
    __name__,
    {
        "optimization_step": ("trainable",),
    },
)
