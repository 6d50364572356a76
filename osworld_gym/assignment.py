"""Assigns tasks to environment rows: independent draws, or groups of sibling episodes. Seeded, no torch."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from osworld_gym.tasks.task import Task

logger = logging.getLogger(__name__)

#: group ids are ``(seed % 2**32) * GROUPS_PER_SEED + round``, so that workers with different seeds never share one
GROUPS_PER_SEED = 2**30
#: how often a task whose group had fewer than two valid episodes is repeated before it waits for the next epoch
MAX_REQUEUES = 3


@dataclass(frozen=True, slots=True)
class Assignment:
    """One episode to run.

    Args:
        task: the task that the episode plays.
        seed: seed of the desktop; equal for all episodes of a group.
        group_id: the group's number, unique across environment seeds; -1 for a task given to ``reset``.
        slot: position in the group, 0..N-1.
        retries_left: how often the episode will be run again if its desktop fails.
    """

    task: Task
    seed: int
    group_id: int = -1
    slot: int = 0
    retries_left: int = 0


class TaskAssigner(Protocol):
    """Assigns episodes to rows; its user reports how each one ended."""

    def next(self, row: int) -> Assignment:
        """The next episode of environment row ``row``."""
        ...

    def finished(self, assignment: Assignment, *, failed: bool) -> None:
        """Reports an ended episode; ``failed``: its infrastructure failed, so it has no verdict."""
        ...

    def dropped(self, assignment: Assignment) -> None:
        """Reports an episode that a reset interrupted."""
        ...


class IndependentTasks:
    """Each row draws its own tasks, as a function of (seed, row, episode number). Every episode is its own group.

    Args:
        tasks: the tasks, drawn uniformly with replacement.
        seed: seed of the draws and of the desktops' seeds.
        rows: number of the environment's rows.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, rows: int) -> None:
        self._tasks, self._seed, self._begun = tuple(tasks), seed, [0] * rows

    def next(self, row: int) -> Assignment:
        """Draws a task uniformly."""
        generator = np.random.default_rng((self._seed, row, self._begun[row]))
        task = self._tasks[generator.integers(len(self._tasks))]
        seed = int(generator.integers(2**31))
        number = self._begun[row] * len(self._begun) + row
        self._begun[row] += 1
        return Assignment(task, seed, first_group_id(self._seed) + number)

    def finished(self, assignment: Assignment, *, failed: bool) -> None:
        """Nothing to do: no other episode depends on it."""

    def dropped(self, assignment: Assignment) -> None:
        """Nothing to do: the episode is not run again."""


@dataclass(slots=True)
class _Group:
    """A group with unfinished episodes."""

    task: int
    left: int
    valid: int = 0


class GroupedTasks:
    """Groups of ``group_size`` sibling episodes with the same task and desktop seed, run by whichever rows are free.

    Each epoch contains every task once, in a seeded order. An episode whose desktop failed is run again with the same
    seed, at most ``retries`` times, and then left out; an episode that a reset interrupted is run again. A task whose
    group had fewer than two valid episodes is requeued first, at most ``MAX_REQUEUES`` times in a row. This is the rule
    of ``bepa_torchrl.GroupRolloutCollector``.

    Args:
        tasks: the tasks of an epoch.
        seed: seed of the order and of the desktops; the desktop seed of group g is derived from (seed, g).
        group_size: number of episodes in a group, at least 2.
        retries: how often an episode whose desktop failed is run again.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, group_size: int, retries: int) -> None:
        self._tasks, self._seed, self._size, self._retries = tuple(tasks), seed, group_size, retries
        self._epoch = self._round = 0
        self._queue: deque[int] = deque()  # task numbers, next first
        self._waiting: deque[Assignment] = deque()
        self._open: dict[int, _Group] = {}
        self._requeued: Counter[int] = Counter()

    def next(self, row: int) -> Assignment:
        """The next sibling episode of the current group, for any row."""
        del row
        if not self._waiting:
            self._open_group()
        return self._waiting.popleft()

    def finished(self, assignment: Assignment, *, failed: bool) -> None:
        """Counts the episode, or requeues it first if it failed and has retries left."""
        if failed and assignment.retries_left:
            self._waiting.appendleft(replace(assignment, retries_left=assignment.retries_left - 1))
            return
        group = self._open[assignment.group_id]
        group.left -= 1
        group.valid += not failed
        if group.left:
            return
        del self._open[assignment.group_id]
        if group.valid >= 2:
            self._requeued[group.task] = 0
        else:
            self._requeue(group.task)

    def dropped(self, assignment: Assignment) -> None:
        """Requeues the episode first."""
        self._waiting.appendleft(assignment)

    def _open_group(self) -> None:
        if not self._queue:
            order = np.random.default_rng((self._seed, self._epoch)).permutation(len(self._tasks))
            self._queue.extend(int(number) for number in order)
            self._epoch += 1
        number, group_id = self._queue.popleft(), first_group_id(self._seed) + self._round
        seed = int(np.random.default_rng((self._seed, self._round, 1)).integers(2**31))
        self._round += 1
        self._open[group_id] = _Group(number, self._size)
        task = self._tasks[number]
        self._waiting.extend(Assignment(task, seed, group_id, slot, self._retries) for slot in range(self._size))

    def _requeue(self, number: int) -> None:
        self._requeued[number] += 1
        if self._requeued[number] > MAX_REQUEUES:
            self._requeued[number] = 0
            logger.warning("task %s: no two valid episodes in %d groups", self._tasks[number].id, MAX_REQUEUES + 1)
        else:
            self._queue.appendleft(number)


def first_group_id(seed: int) -> int:
    """The id of the first group under ``seed``."""
    return (seed % 2**32) * GROUPS_PER_SEED
