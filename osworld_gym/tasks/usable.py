"""Which of a suite's tasks can be used: those that this version supports, or that can run on this machine."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from osworld_gym.tasks.providers import REMOTE_MACHINES
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task


def not_supported(tasks: Iterable[Task]) -> dict[str, str]:
    """The ids of the unsupported tasks → the reason (:attr:`~osworld_gym.tasks.task.Task.unsupported`) of each."""
    return {task.id: f"it is not supported: {task.unsupported}" for task in tasks if task.unsupported}


def not_runnable(tasks: Iterable[Task], provider: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The ids of the tasks that cannot run on this machine's desktops of a provider → the first reason of each.

    Args:
        tasks: the tasks.
        provider: its name; ``vm`` and ``remote`` may reach the live web.
        options: keyword arguments of its class; with ``proxy``, its desktops reach the web, too.
    """
    from osworld_gym.tasks.suites.osworld.requirements import Machine, reasons_against  # reads what is installed

    machine = Machine(network=provider in REMOTE_MACHINES or options.get("proxy") is not None)
    against = {task.id: reasons_against(task, provider, machine) for task in tasks}
    return {
        task_id: re.sub(r"^\d+ of its files", "some of its files", reasons[0])
        for task_id, reasons in against.items()
        if reasons
    }


def usable(suite: Suite, tasks: Sequence[Task], against: Mapping[str, str], what: str) -> tuple[tuple[Task, ...], str]:
    """The tasks with nothing against them, and a sentence that counts the others by reason (empty if there are none).

    Args:
        suite: the suite of the tasks.
        tasks: the tasks.
        against: as of :func:`not_supported` or :func:`not_runnable`.
        what: where the tasks are from, such as the name of a split.
    """
    able = tuple(task for task in tasks if task.id not in against)
    if len(able) == len(tasks):
        return able, ""
    out = [task for task in tasks if task.id in against]
    reasons = Counter(against[task.id] for task in out).most_common()
    said = f"{len(out)} of {len(tasks)} tasks of {what} cannot run here and are left out: "
    said += "; ".join(f"{count} × {reason}" for reason, count in reasons)
    if any(task.unsupported for task in out):
        said += f"; {lists_unsupported(suite)} lists the files that are not supported"
    return able, said


def lists_unsupported(suite: Suite) -> str:
    """The command that lists a suite's unsupported tasks with their files, in backquotes."""
    return f"`osworld-gym tasks list --suite {shlex.quote(suite.name)} --unsupported`"
