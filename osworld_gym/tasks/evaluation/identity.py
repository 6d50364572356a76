"""Whose evaluators score tasks, as text with a hash, so that two results can be compared.

OSWorld's evaluators change without a new version number, and the scores of some tasks with them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress

from osworld_gym.errors import TaskError
from osworld_gym.tasks.evaluation.judging import is_judged
from osworld_gym.tasks.evaluation.official_pool import OfficialLocation, find_official
from osworld_gym.tasks.evaluation.score import Backend, Evaluators, is_official
from osworld_gym.tasks.evaluation.verify import read_evaluator
from osworld_gym.tasks.task import Task


def evaluators_identity(tasks: Iterable[Task], backend: Backend | str) -> str:
    """Whose evaluators score these tasks: ours, OSWorld's with their hash, or ours where we have them and else those.

    Args:
        tasks: the tasks; unsupported ones, and those that a judge or no installed evaluator can score, are left out.
        backend: a :class:`Backend` or its name.

    Raises:
        TaskError: an evaluator is malformed.
    """
    evaluators, theirs = Evaluators(backend), False
    for task in tasks:
        for check in () if task.unsupported or is_judged(task) else read_evaluator(task)[1]:
            with suppress(TaskError):
                theirs = theirs or is_official(task.id, check, evaluators)
    place = find_official()
    if not theirs or place is None:
        return "ours"
    name = f"OSWorld's ({official_identity(place)})"
    return name if evaluators.backend is Backend.official else f"ours, or else {name}"


def official_identity(place: OfficialLocation) -> str:
    """The version of OSWorld's evaluators, if it was installed as a package, and the hash of their source."""
    digest, folder = hashlib.sha256(), place.folder / "desktop_env" / "evaluators"
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    versions = [info.name.removesuffix(".dist-info") for info in place.folder.glob("desktop_env-*.dist-info")]
    return ", ".join([*versions, f"sha256 {digest.hexdigest()[:16]}"])
