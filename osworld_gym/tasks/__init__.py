"""Tasks: OSWorld's JSON, setup steps, verification, suites, and the oracles that solve our own.

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from osworld_gym.tasks.checks import check_task
    from osworld_gym.tasks.evaluation.getters import GETTERS
    from osworld_gym.tasks.evaluation.metrics import METRICS
    from osworld_gym.tasks.oracles.base import ExpertStep
    from osworld_gym.tasks.suite import Suite
    from osworld_gym.tasks.suites.registry import SUITES, load_suite
    from osworld_gym.tasks.task import Task

__all__ = [
    "GETTERS",
    "METRICS",
    "SUITES",
    "ExpertStep",
    "Suite",
    "Task",
    "check_task",
    "load_suite",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checks": ("check_task",),
        "evaluation.getters": ("GETTERS",),
        "evaluation.metrics": ("METRICS",),
        "oracles.base": ("ExpertStep",),
        "suite": ("Suite",),
        "suites.registry": (
            "SUITES",
            "load_suite",
        ),
        "task": ("Task",),
    },
)
