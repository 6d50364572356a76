"""TaskSchedule: the order of training tasks, in shuffled epochs without replacement; resumable."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import numpy as np

from bepa_torchrl.data.seeding import Stream, derive_seed


class TaskSchedule:
    """Yields task indices 0..n-1. Each epoch yields every index once; no batch contains an index twice.

    Args:
        count: number of tasks.
        seed: seed of the order; the order of epoch e depends on (seed, e) only.

    Raises:
        ValueError: ``count`` is below 1.
    """

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise ValueError("no task left to train on; name a split that has tasks")
        self.count, self.seed = count, seed
        self.epoch = 0
        self._queue: deque[int] = deque()

    def next_batch(self, groups: int, *, without: Collection[int] = ()) -> list[int]:
        """The next ``groups`` task indices, all different, and none of ``without``; those come later.

        Raises:
            ValueError: more groups than tasks.
        """
        if groups > self.count - len(set(without)):
            raise ValueError(
                f"a batch of {groups} groups requires {groups} different tasks, there are "
                f"{self.count - len(set(without))}; lower collect.groups or add tasks"
            )
        out: list[int] = []
        later: list[int] = []
        while len(out) < groups:
            if not self._queue:
                self._deal()
            number = self._queue.popleft()
            (later if number in out or number in without else out).append(number)
        self._queue.extendleft(reversed(later))
        return out

    def requeue(self, number: int) -> None:
        """Puts a task whose group could not be used at the front of the next batch."""
        self._queue.appendleft(number)

    def _deal(self) -> None:
        order = np.random.default_rng(derive_seed(self.seed, Stream.TASK_ORDER, self.epoch)).permutation(self.count)
        self._queue.extend(int(n) for n in order)
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """The rest of the current epoch."""
        return {"count": self.count, "seed": self.seed, "epoch": self.epoch, "queue": list(self._queue)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a ``state_dict``.

        Raises:
            ValueError: the state has another number of tasks or another seed.
        """
        if (state["count"], state["seed"]) != (self.count, self.seed):
            raise ValueError(
                f"this schedule has {self.count} tasks and seed {self.seed}, the checkpoint's has "
                f"{state['count']} and {state['seed']}; resume with the configuration that made the checkpoint"
            )
        self.epoch = int(state["epoch"])
        self._queue = deque(int(n) for n in state["queue"])
