"""Rollouts: episodes, groups, and the transforms that turn groups into training rows.

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.rollout.injection import Injection
    from bepa_torchrl.rollout.old_log_prob import OldLogProb
    from bepa_torchrl.rollout.task_schedule import TaskSchedule
    from bepa_torchrl.rollout.weight_sync import ServiceWeightSync

__all__ = [
    "Injection",
    "OldLogProb",
    "ServiceWeightSync",
    "TaskSchedule",
]

__getattr__ = lazy_names(
    __name__,
    {
        "injection": ("Injection",),
        "old_log_prob": ("OldLogProb",),
        "task_schedule": ("TaskSchedule",),
        "weight_sync": ("ServiceWeightSync",),
    },
)
