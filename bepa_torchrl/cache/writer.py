"""The cache's writer: assigns slots to traces by task, and evicts when the cache is full."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.cache.metadata import TraceMetadata, describe
from bepa_torchrl.cache.storage import TraceStorage
from bepa_torchrl.storage import FolderError
from bepa_torchrl.torchrl_private import CountingWriter

WHEN_FULL = ("evict", "error")


class CacheFullError(RuntimeError):
    """The cache already has ``max_tasks`` tasks and ``when_full`` is ``error``."""


class KeyedWriter(CountingWriter):
    """Keeps the newest ``traces_per_task`` traces of at most ``max_tasks`` tasks.

    A task's newest trace replaces its oldest. When a new task arrives and the cache is full, the least recently used
    (read or written) task is evicted, or :class:`CacheFullError` is raised.

    Args:
        traces_per_task: the most traces that a task may have, at least 1.
        max_tasks: the most tasks, at least 1; None: unlimited.
        when_full: ``evict`` or ``error``.
    """

    def __init__(self, traces_per_task: int, max_tasks: int | None, when_full: str) -> None:
        super().__init__()
        self.traces_per_task, self.max_tasks, self.when_full = traces_per_task, max_tasks, when_full
        self.slots: OrderedDict[str, list[int]] = OrderedDict()  # per task, oldest trace first; last used task last
        self.metadata: list[TraceMetadata] = []  # per slot
        self.evictions = 0

    @property
    def storage(self) -> TraceStorage:
        return cast(TraceStorage, super().storage)

    def add(self, data: TensorDictBase) -> int:
        """Puts a trace ``[S]`` at its task's slot and returns the slot."""
        index = self.write(data, describe(data, self.write_count))
        self.write_count += 1
        return index

    def extend(self, data: Sequence[TensorDictBase]) -> Tensor:
        """Puts a list of traces, in order.

        Returns:
            ``[len(data)]`` int64: each trace's slot after the call, -1 if the same call removed it again.

        Raises:
            ValueError: a trace is not a success of one task; none is put.
            CacheFullError: not all of their tasks fit and ``when_full`` is ``error``; none is put.
        """
        traces = list(data)
        described = [describe(trace, self.write_count + i) for i, trace in enumerate(traces)]
        if self.when_full == "error":
            self._check_capacity({metadata.task_id for metadata in described} - set(self.slots))
        for trace, metadata in zip(traces, described, strict=True):
            self.write(trace, metadata)
            self.write_count += 1
        slots = {metadata.serial: slot for slot, metadata in enumerate(self.metadata)}
        return torch.tensor([slots.get(metadata.serial, -1) for metadata in described], dtype=torch.int64)

    def write_at(self, index: int, trace: TensorDictBase) -> None:
        """Replaces the trace in a slot, negative from the end, by one of the same task, which is its newest then.

        Raises:
            IndexError: no such slot. ValueError: a trace of another task, or one that did not succeed.
        """
        count = len(self.metadata)
        if not -count <= index < count:
            raise IndexError(f"slot {index} is not in the cache, which has {count} traces; use put")
        index %= count
        metadata = describe(trace, self.write_count)
        expected = self.metadata[index].task_id
        if metadata.task_id != expected:
            raise ValueError(
                f"slot {index} holds a trace of task {expected!r}; got one of {metadata.task_id!r}; use put, which "
                "finds the slot of its task"
            )
        self.storage.set(index, trace)
        self.metadata[index] = metadata
        self.write_count += 1
        own = self.slots[expected]
        own.append(own.pop(own.index(index)))
        self.touch(expected)
        self.mark_updated(index)

    def write(self, trace: TensorDictBase, metadata: TraceMetadata) -> int:
        """Puts a trace with given metadata; returns its slot."""
        own = self.slots.get(metadata.task_id, [])
        if len(own) >= self.traces_per_task:
            index = own.pop(0)
        else:
            if not own:
                self._evict_if_full(metadata.task_id)
            index = len(self.metadata)
        self.storage.set(index, trace)
        self.metadata[index : index + 1] = [metadata]
        self.slots.setdefault(metadata.task_id, own).append(index)
        self.touch(metadata.task_id)
        self.mark_updated(index)
        return index

    def touch(self, task_id: str) -> None:
        """Marks a task as the most recently used."""
        self.slots.move_to_end(task_id)

    def remove(self, task_id: str) -> None:
        """Removes all traces of a task; other traces may move to other slots."""
        own = self.slots.pop(task_id)
        while own:
            index = own.pop()
            moved = self.storage.remove(index)
            last = self.metadata.pop()
            if moved is None:
                continue
            self.metadata[index] = last
            owner = own if last.task_id == task_id else self.slots[last.task_id]
            owner[owner.index(moved)] = index
            self.mark_updated(index)

    def _evict_if_full(self, task_id: str) -> None:
        if self.max_tasks is None or len(self.slots) < self.max_tasks:
            return
        if self.when_full == "error":
            self._check_capacity({task_id})
        self.remove(next(iter(self.slots)))
        self.evictions += 1

    def _check_capacity(self, new: set[str]) -> None:
        """Raises CacheFullError if these tasks, which have no trace yet, do not all fit."""
        if self.max_tasks is not None and len(self.slots) + len(new) > self.max_tasks:
            raise CacheFullError(
                f"the cache is full: it holds {len(self.slots)} of at most {self.max_tasks} tasks, got traces of "
                f"{len(new)} new ones ({', '.join(sorted(new)[:3])}{', …' if len(new) > 3 else ''}); "
                "raise max_tasks, discard a task, or set when_full='evict'"
            )

    def clear(self, empty_write_count: bool = True) -> None:
        """Forgets every trace; with ``empty_write_count`` also how many were written."""
        self.slots.clear()
        self.metadata.clear()
        if empty_write_count:
            self.write_count = 0

    def state_dict(self) -> dict[str, Any]:
        """The index without the traces, JSON-compatible."""
        return {
            "tasks": [[task_id, list(slots)] for task_id, slots in self.slots.items()],
            "metadata": [asdict(one) for one in self.metadata],
            "write_count": self.write_count,
            "evictions": self.evictions,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The inverse of :meth:`state_dict`.

        Raises:
            FolderError: the state exceeds this writer's limits; nothing is changed.
        """
        tasks = state_dict["tasks"]
        most = max((len(slots) for _, slots in tasks), default=0)
        if most > self.traces_per_task:
            raise FolderError(
                f"the saved cache holds {most} traces of one task, this one keeps {self.traces_per_task}; "
                f"make it with traces_per_task={most}"
            )
        if self.max_tasks is not None and len(tasks) > self.max_tasks:
            raise FolderError(
                f"the saved cache holds {len(tasks)} tasks, this one {self.max_tasks} at most; "
                f"make it with max_tasks={len(tasks)}"
            )
        metadata = [TraceMetadata(**one) for one in state_dict["metadata"]]
        if sorted(slot for _, slots in tasks for slot in slots) != list(range(len(metadata))):
            raise FolderError(f"the saved index names slots {tasks} for {len(metadata)} traces; it is damaged")
        self.write_count, self.evictions = state_dict["write_count"], state_dict["evictions"]
        self.slots = OrderedDict((task_id, list(slots)) for task_id, slots in tasks)
        self.metadata = metadata

    def dumps(self, path: Any) -> None:
        """Raises TypeError: the cache saves index and traces together, so that they stay consistent."""
        raise TypeError(f"save the whole cache with TaskTraceCache.dumps, not its writer alone (to {path})")

    def loads(self, path: Any) -> None:
        """Raises TypeError, as :meth:`dumps`."""
        raise TypeError(f"load the whole cache with TaskTraceCache.loads, not its writer alone (from {path})")
