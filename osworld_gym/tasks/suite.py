"""Suite: a set of tasks with disjoint named splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osworld_gym.errors import TaskError, did_you_mean
from osworld_gym.tasks.task import Task


@dataclass(frozen=True)
class Suite:
    """Tasks and disjoint splits of their ids.

    Args:
        name: the suite's name, for error messages.
        tasks: the tasks; their ids are unique.
        splits: split name (``train``, ``held_out``) → task ids, in order. Not every task needs to be in a split.
        revision: the commit of the checkout that the tasks are from; empty if they are from none.

    Raises:
        TaskError: a duplicate id, or a split with an unknown id or with an id of another split.
    """

    name: str
    tasks: tuple[Task, ...]
    splits: Mapping[str, Sequence[str]]
    revision: str = ""

    def __post_init__(self) -> None:
        ids = [task.id for task in self.tasks]
        if len(set(ids)) != len(ids):
            raise TaskError(f"suite {self.name!r}: duplicate task ids: {sorted({i for i in ids if ids.count(i) > 1})}")
        seen: dict[str, str] = {}
        for split, members in self.splits.items():
            for member in members:
                if member not in set(ids):
                    raise TaskError(f"suite {self.name!r}: split {split!r} names unknown task {member!r}")
                if member in seen:
                    raise TaskError(f"suite {self.name!r}: task {member!r} is in both {seen[member]!r} and {split!r}")
                seen[member] = split

    def task(self, task_id: str) -> Task:
        """The task with this id. Raises TaskError if there is none."""
        for task in self.tasks:
            if task.id == task_id:
                return task
        ids = [task.id for task in self.tasks]
        known = ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
        raise TaskError(
            f"no task {task_id!r} in suite {self.name!r}{did_you_mean(task_id, ids)}; it has {len(ids)}: {known}; "
            "`osworld-gym tasks list` prints all of a suite"
        )

    def find(self, beginning: str) -> Task:
        """The task with this id, or else the only one whose id begins with it.

        Raises:
            TaskError: there is none, or several begin with it.
        """
        found = [task for task in self.tasks if beginning and task.id.startswith(beginning)]
        if len(found) == 1:
            return found[0]
        if not found or any(task.id == beginning for task in found):
            return self.task(beginning)
        names = ", ".join(task.id for task in found)
        raise TaskError(
            f"{len(found)} tasks of suite {self.name!r} begin with {beginning!r}, expected one: {names}; fix: write "
            "more of the id"
        )

    def split(self, name: str) -> tuple[Task, ...]:
        """The tasks of a split in its order; ``all``: every task; a tag: every task with that tag.

        Names joined by ``+`` are those of the first, then those of the next that are not among them.

        Raises:
            TaskError: the name is neither a split nor a tag.
        """
        if name == "all":
            return self.tasks
        if "+" in name:
            return tuple({task.id: task for part in name.split("+") for task in self.split(part)}.values())
        if name not in self.splits:
            tagged = tuple(task for task in self.tasks if name in task.tags)
            if not tagged:
                known = ", ".join(["all", *self.splits])
                hint = did_you_mean(name, ["all", *self.splits, *{tag for task in self.tasks for tag in task.tags}])
                raise TaskError(f"no split {name!r} in suite {self.name!r}, nor such a tag{hint}; it has: {known}")
            return tagged
        by_id = {task.id: task for task in self.tasks}
        return tuple(by_id[i] for i in self.splits[name])

    def of(self, tasks: Iterable[Task]) -> Suite:
        """The suite with these of its tasks alone, in one split ``all_tasks``."""
        chosen = tuple(tasks)
        return Suite(self.name, chosen, {"all_tasks": [task.id for task in chosen]}, self.revision)

    @property
    def digest(self) -> str:
        """First 16 hex digits of a SHA-256 over the tasks' ids and content hashes, independent of their order."""
        lines = sorted(f"{task.id} {task.content_hash}" for task in self.tasks)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

    def fingerprint(self, tasks: Iterable[Task]) -> dict[str, Any]:
        """States which tasks a result was measured on: the suite's name, revision and digest, each task's hash.

        Tasks with an id of OSWorld differ between its versions.
        """
        hashes = {task.id: task.content_hash for task in tasks}
        return {"suite": self.name, "revision": self.revision, "digest": self.digest, "hashes": hashes}
