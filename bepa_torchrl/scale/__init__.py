"""Rollouts, engines, trainer ranks and stores beyond one process; the core imports nothing of it.

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
    from bepa_torchrl.scale.rollouts.env_worker import EnvWorker
    from bepa_torchrl.scale.rollouts.queue_service import QueueService
    from bepa_torchrl.scale.rollouts.rollout_service import RolloutService

__all__ = [
    "AsyncGroupCollector",
    "EnvWorker",
    "QueueService",
    "RolloutService",
]

__getattr__ = lazy_names(
    __name__,
    {
        "rollouts.async_collector": ("AsyncGroupCollector",),
        "rollouts.env_worker": ("EnvWorker",),
        "rollouts.queue_service": ("QueueService",),
        "rollouts.rollout_service": ("RolloutService",),
    },
)
