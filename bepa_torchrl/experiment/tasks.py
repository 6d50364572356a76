"""The tasks of a run, and what ``cache.seed`` has for them. Imports no torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bepa_torchrl.experiment import preflight
from bepa_torchrl.experiment.config import ConfigError, check
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experts.seed import Seed, read_seed
from osworld_gym.errors import TaskError
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.registry import listed_tasks, load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.tasks.usable import not_runnable, not_supported, usable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The suite and the tasks chosen from it.

    Args:
        suite: the suite of the tasks.
        train: training tasks, at most ``env.train_limit``.
        held_out: tasks for evaluation only, at most ``env.held_out_limit``.
    """

    suite: Suite
    train: tuple[Task, ...]
    held_out: tuple[Task, ...]


def make_tasks(settings: Settings, *, every: bool = False) -> Tasks:
    """Selects the tasks of a run.

    Args:
        settings: the settings of the run.
        every: whether tasks that cannot run here are chosen, too, as for an evaluation, where they have no result.

    Raises:
        TaskError: unknown suite or split, or a list of tasks cannot be read.
        ConfigError: a list is missing, there is no training task, or a training task is also held out.
    """
    check(settings, (preflight.task_lists,))
    env = settings.env
    suite = load_suite(env.suite)
    select = _listed if every else _able
    train = select(settings, suite, "train_split")[: env.train_limit]
    held_out = () if env.held_out_split is None else select(settings, suite, "held_out_split")[: env.held_out_limit]
    if not train:
        none = "is empty" if every or not _listed(settings, suite, "train_split") else "has none that can run here"
        raise ConfigError(f"no task left: split {env.train_split!r} of suite {suite.name!r} {none}")
    both = {task.id for task in train} & {task.id for task in held_out}
    if both:
        names = f"env.train_split={env.train_split} and env.held_out_split={env.held_out_split}"
        raise ConfigError(
            f"{names} share {len(both)} tasks, first {min(both)!r}; fix: env.held_out_split=null, for no held-out "
            "tasks, or splits or lists without a common task"
        )
    return Tasks(suite, train, held_out)


def _able(settings: Settings, suite: Suite, key: str) -> tuple[Task, ...]:
    """Those of :func:`_listed` that are not :func:`not_executable`; a warning counts the others by reason."""
    tasks = _listed(settings, suite, key)
    able, said = usable(suite, tasks, not_executable(settings, tasks), getattr(settings.env, key))
    if said:
        _log.warning("%s", said)
    return able


def _listed(settings: Settings, suite: Suite, key: str) -> tuple[Task, ...]:
    """All tasks of the split, tag or list file ``env.KEY``."""
    name = str(getattr(settings.env, key))
    return listed_tasks(suite, Path(name).expanduser()) if name.endswith(".json") else _split(suite, key, name)


def list_facts(settings: Settings, tasks: Tasks) -> dict[str, Any]:
    """Which tasks an evaluation is of, for its card.

    Returns:
        ``list``: the name of the list; and if a limit leaves out a part of it, in words and as ``limited``, the numbers
        of ``tasks`` and those that they are the first ``of``.
    """
    env = settings.env
    parts = [("train", env.train_split, env.train_limit)]
    if env.held_out_split is not None:
        parts.append(("held_out", env.held_out_split, env.held_out_limit))
    sizes = [len(_listed(settings, tasks.suite, f"{part}_split")) for part, _, _ in parts]
    cut = [
        f"env.{part}_limit={n}" for (part, _, n), size in zip(parts, sizes, strict=True) if n is not None and n < size
    ]
    name = Path(env.train_split).name
    if not cut:
        return {"list": name}
    number, whole = len(tasks.train) + len(tasks.held_out), sum(sizes)
    words = f"the first {number} of {whole} ({', '.join(cut)})"
    return {"list": words if name == "all" else f"{name}: {words}", "limited": {"tasks": number, "of": whole}}


def _split(suite: Suite, key: str, name: str) -> tuple[Task, ...]:
    """The tasks of a split or tag. Raises TaskError with the setting if there is none."""
    try:
        return suite.split(name)
    except TaskError as error:
        none = ", or null for no held-out tasks" if key == "held_out_split" else ""
        fix = f"fix: env.{key}=NAME of one of these or of a tag, env.{key}=FILE.json with a list of tasks{none}"
        raise TaskError(f"env.{key}={name}: {error}; {fix}") from error


def not_executable(settings: Settings, tasks: Sequence[Task]) -> dict[str, str]:
    """The tasks that cannot run on the desktops of the settings, and why.

    Without ``env.runnable`` these are the unsupported ones only.
    """
    if not settings.env.runnable:
        return not_supported(tasks)
    return not_runnable(tasks, settings.env.provider, settings.env.options)


def run_seed(settings: Settings) -> Seed | None:
    """What ``cache.seed`` has, or None. Raises TraceError if it is no folder of traces."""
    return None if settings.cache.seed is None else read_seed(Path(settings.cache.seed).expanduser())
