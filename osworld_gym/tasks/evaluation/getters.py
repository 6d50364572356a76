"""Getters: functions that read a result or an expected value from the desktop, by OSWorld's ``type`` names.

A getter is ``f(run, config) -> value``. Files are returned as bytes (OSWorld: paths in its cache). A missing result
raises FileNotFoundError, which the verifier scores 0; any other exception is the evaluator's failure, never a score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from osworld_gym.extensions import Registry
from osworld_gym.tasks.evaluation import osworld
from osworld_gym.tasks.evaluation.osworld.getters.values import one_or_many
from osworld_gym.tasks.setup.run import TaskRun

Getter = Callable[[TaskRun, Mapping[str, Any]], Any]

GETTERS: Registry[Getter] = Registry(
    "osworld_gym.getters",
    osworld.located("getters", osworld.GETTERS),
    expects="a function of a task's run and the getter's configuration",
)

__all__ = ["GETTERS", "Getter", "one_or_many"]
