"""Registry of oracles by a task's ``oracle["type"]``."""

from __future__ import annotations

from collections.abc import Callable

from osworld_gym.errors import TaskError
from osworld_gym.tasks.oracles.base import Oracle
from osworld_gym.tasks.task import Task

STYLES = ("expert", "native")


def _sim(task: Task, style: str) -> Oracle:
    from osworld_gym.tasks.oracles.sim.oracle import SimOracle

    return SimOracle(task, style=style)


def _local(task: Task, style: str) -> Oracle:
    from osworld_gym.tasks.oracles.gui_script import LocalOracle

    return LocalOracle(task, style=style)


#: oracle type → its constructor
ORACLES: dict[str, Callable[[Task, str], Oracle]] = {"sim": _sim, "local": _local}


def make_oracle(task: Task, style: str = "expert") -> Oracle:
    """An oracle for one episode of ``task``.

    Args:
        task: a task with an ``oracle``.
        style: ``expert``: acts as a framework expert (tool calls, keyboard shortcuts); ``native``: acts as the policy
            (clicks).

    Raises:
        TaskError: the task has no oracle (official tasks have none) or one of unknown type.
        ValueError: unknown style.
    """
    if style not in STYLES:
        raise ValueError(f"unknown oracle style {style!r}; known: {', '.join(STYLES)}")
    if task.oracle is None:
        raise TaskError(f"task {task.id!r} has no oracle; tasks of the bundled suites have one")
    kind = task.oracle.get("type")
    if not isinstance(kind, str) or kind not in ORACLES:
        raise TaskError(f"task {task.id!r}: oracle.type {kind!r} is unknown; known: {', '.join(sorted(ORACLES))}")
    return ORACLES[kind](task, style)
