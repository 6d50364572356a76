"""TaskTraceCache: the paper's per-task cache E_x as a TorchRL replay buffer keyed by task id."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, cast

import torch
from tensordict import TensorDictBase, lazy_stack
from torch import Tensor
from torchrl.data import RandomSampler, ReplayBuffer, Storage, Writer
from torchrl.envs.transforms import Transform

from bepa_torchrl.cache.metadata import TraceMetadata, describe
from bepa_torchrl.cache.rules import RULES, choose, draw
from bepa_torchrl.cache.saving import CacheState, check_state, read_state, write_state
from bepa_torchrl.cache.storage import TraceStorage, trace_from_plain
from bepa_torchrl.cache.writer import WHEN_FULL, KeyedWriter
from bepa_torchrl.data.seeding import Stream
from bepa_torchrl.storage import FolderError
from bepa_torchrl.torchrl_private import prefetched_discarded, read_lock, write_lock
from osworld_gym.counts import check_count


def stack_traces(traces: Sequence[TensorDictBase]) -> TensorDictBase:
    """Stacks traces of different lengths lazily, ``[B, -1]``; ``unbind(0)`` returns the traces."""
    return cast(TensorDictBase, lazy_stack(list(traces)))


def _check_task(task_id: str, trace: TensorDictBase) -> None:
    """Raises ValueError for another task's trace, or as :func:`describe`."""
    owner = describe(trace, 0).task_id
    if owner != task_id:
        raise ValueError(
            f"expected a trace of task {task_id!r}, got one of {owner!r}; put it under {owner!r}, or use add, which "
            "reads the task from its rows"
        )


def _slot(index: Any) -> int:
    """An integer index as int. Raises TypeError for anything else, a bool and several indices included."""
    try:
        if isinstance(index, bool) or getattr(index, "dtype", None) == torch.bool:
            raise TypeError
        return operator.index(index)
    except TypeError:
        problem = f"cache[i] = trace requires an integer slot, got {index!r:.80}; use put(task_id, trace)"
        raise TypeError(problem) from None


def _one_by_one(call: str) -> TypeError:
    return TypeError(f"traces are replaced one by one, by cache[i] = trace, put or extend; got {call}")


def _without_hooks(hook: object, method: str) -> TypeError:
    return TypeError(
        f"a trace cache calls no hook in {method}, which writes and reads text and images itself; got {hook!r:.80}; "
        "change traces before put, or in what get_trace returns"
    )


class TaskTraceCache(ReplayBuffer):
    """One successful trace per task, replaced by the policy's newer successes. Paper section LEVEL-2.

    A trace is the lazy stack ``[S]`` of an episode's rows (:mod:`bepa_torchrl.data.keys`), text and images included.
    The cache stores and returns copies, and is thread-safe. Random choices depend on (seed, task, count) only, so they
    survive restarts and do not depend on other tasks.

    As in any replay buffer, ``sample`` and iteration require a batch size, set here or in the call; they return a lazy
    stack ``[B, -1]`` of traces. Transforms apply to ``add`` and ``extend`` (the inverse, on each trace ``[S]``), and to
    sampling and indexing (forward). ``get_trace``, ``put`` and ``refresh``, which finalise groups, apply no transform.
    ``cache[i] = trace`` replaces a slot by a success of the same task. Storage and writer cannot be replaced;
    hooks, writes to all traces at once and sharing between processes are refused. A ``ReplayBufferEnsemble`` cannot
    sample caches, since it expands to the batch's size, which is ragged; put the traces into one cache. What is saved
    has neither the generator of ``set_rng`` nor the state of transforms.

    Args:
        traces_per_task: traces kept per task, the newest ones; 1 in the paper, 8 in ARPO.
        max_tasks: maximum number of tasks; None: unlimited.
        rule: the update rule U: ``random``, ``shortest``, ``highest_logprob``, or ``all`` (each success, in slot
            order).
        when_full: ``evict`` the least recently used task, or ``error``.
        seed: seed of the random choices, >= 0; part of the saved state.
        batch_size: batch size of ``sample`` and iteration, as in ``ReplayBuffer``.
        prefetch: batches that threads sample ahead, as in ``ReplayBuffer``; requires ``batch_size``.
        transform: as in ``ReplayBuffer``.

    Raises:
        ValueError: an argument is out of range, or a number is no integer.
    """

    def __init__(
        self,
        *,
        traces_per_task: int = 1,
        max_tasks: int | None = None,
        rule: str = "random",
        when_full: str = "evict",
        seed: int = 0,
        batch_size: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
    ) -> None:
        check_count("traces_per_task", traces_per_task)
        if max_tasks is not None:
            check_count("max_tasks", max_tasks, why="or None")
        check_count("seed", seed, 0)
        if batch_size is not None:
            check_count("batch_size", batch_size, why="or None")
        if prefetch is not None:
            check_count("prefetch", prefetch, 0, "or None")
        if rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}; got {rule!r}")
        if when_full not in WHEN_FULL:
            raise ValueError(f"when_full must be one of {', '.join(WHEN_FULL)}; got {when_full!r}")
        self.rule, self.seed = rule, seed
        self._refreshes: dict[str, int] = {}  # per task, including evicted ones
        self._injections: dict[str, int] = {}
        super().__init__(
            storage=TraceStorage(None if max_tasks is None else max_tasks * traces_per_task),
            sampler=RandomSampler(),
            writer=KeyedWriter(traces_per_task, max_tasks, when_full),
            collate_fn=stack_traces,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
        )

    def __setitem__(self, index: Any, value: TensorDictBase) -> None:
        """Replaces the trace in a slot by another success of the same task, with new metadata; -1 is the last slot.

        Raises:
            TypeError: the index is not an integer, which NumPy's and torch's are too; or as :meth:`put`.
            IndexError: there is no such slot.
            ValueError: a trace of another task, or one that did not succeed; nothing is changed.
        """
        slot = _slot(index)
        trace = self.transform.inv(value) if self.transform is not None and len(self.transform) else value
        with write_lock(self):
            self._index.write_at(slot, trace)

    def set_storage(self, storage: Storage, collate_fn: Any = None) -> Storage:
        """Raises TypeError: the cache's index is only valid for its own storage."""
        raise TypeError(
            f"a trace cache keeps its storage (got {type(storage).__name__}, {collate_fn}): its index would point "
            "into another one; make a new TaskTraceCache and put the traces"
        )

    def set_writer(self, writer: Writer) -> Writer:
        """Raises TypeError: the writer is the cache's index by task."""
        raise TypeError(f"a trace cache keeps its writer, the index by task (got {type(writer).__name__})")

    def set_(self, key: Any, value: Any) -> NoReturn:
        """Raises TypeError: traces differ in length, so no value fits all of them."""
        raise _one_by_one(f"set_({key!r}, {type(value).__name__})")

    def set_at_(self, key: Any, value: Any, index: Any) -> NoReturn:
        """Raises TypeError, as :meth:`set_`."""
        raise _one_by_one(f"set_at_({key!r}, {type(value).__name__}, {index!r})")

    def update_(self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: Any = None) -> NoReturn:
        """Raises TypeError, as :meth:`set_`."""
        raise _one_by_one(f"update_({type(input_dict_or_td).__name__}, {clone}, keys_to_update={keys_to_update})")

    def register_save_hook(self, hook: Callable[[Any], Any]) -> NoReturn:
        """Raises TypeError: hooks are of a storage's own files, and the cache writes others."""
        raise _without_hooks(hook, "dumps")

    def register_load_hook(self, hook: Callable[[Any], Any]) -> NoReturn:
        """Raises TypeError, as :meth:`register_save_hook`."""
        raise _without_hooks(hook, "loads")

    def share(self, shared: bool = True) -> Self:
        """Raises TypeError if ``shared``: a process that gets the cache has a copy, whose writes stay there."""
        if shared:
            raise TypeError(
                "a trace cache is not shared between processes, got share(True): each process has a copy; keep it in "
                "one process, or send the others its state_dict()"
            )
        return cast(Self, super().share(shared))

    def add(self, data: TensorDictBase) -> int:
        """Puts one trace ``[S]`` under its task and returns its slot. Raises as :meth:`put`."""
        trace = self.transform.inv(data) if self.transform is not None and len(self.transform) else data
        with write_lock(self):
            slot = self._index.add(trace)
            self.sampler.add(slot)
        return slot

    def extend(self, data: Sequence[TensorDictBase], *, update_priority: bool | None = None) -> Tensor:
        """Puts a list of traces ``[S]``, in order, all or none.

        Returns:
            ``[len(data)]`` int64: the slot of each trace after the call; -1 if the same call removed it again
            (a later trace of the same task, or an eviction).

        Raises:
            TypeError: a tensordict instead of a list, or in it something else than a tensordict.
            KeyError: as :meth:`put`.
            ValueError: one of the traces did not succeed or is of several tasks; none is put.
            CacheFullError: not all of their tasks fit, see ``when_full``; none is put.
            NotImplementedError: ``update_priority`` is given.
        """
        if update_priority is not None:
            raise NotImplementedError("a trace cache has no priorities; leave update_priority out")
        if isinstance(data, TensorDictBase):
            raise TypeError("extend takes a list of traces; a single trace [S] goes to put or add")
        traces = list(data)
        if self.transform is not None and len(self.transform):
            traces = [self.transform.inv(trace) for trace in traces]
        with write_lock(self):
            slots = self._index.extend(traces)
            self.sampler.extend(slots)
        return slots

    @property
    def _index(self) -> KeyedWriter:
        return cast(KeyedWriter, self.writer)

    def refresh(self, task_id: str, successes: Sequence[TensorDictBase]) -> bool:
        """``E_x <- U(successes)``: puts the success that the rule selects (``all``: each); True if there was one.

        Args:
            task_id: the task x.
            successes: traces ``[S]`` of that task, in slot order; may be empty.

        Raises:
            TypeError: a tensordict instead of a list, or in it something else than a tensordict.
            KeyError: a trace's rows lack a key that describes their origin, or that the rule reads.
            ValueError: a trace of another task, or one that did not succeed; none is put.
            CacheFullError: see ``when_full``.
        """
        if isinstance(successes, TensorDictBase):
            raise TypeError("refresh takes a list of traces; a single trace [S] goes to put or add")
        if not successes:
            return False
        for trace in successes:
            _check_task(task_id, trace)
        with write_lock(self):
            chosen = list(successes) if self.rule == "all" else [self.chosen(task_id, successes)]
            self.sampler.extend(self.writer.extend(chosen))
            self._refreshes[task_id] = self._refreshes.get(task_id, 0) + 1
        return True

    def chosen(self, task_id: str, successes: Sequence[TensorDictBase]) -> TensorDictBase:
        """The success that the task's next :meth:`refresh` would put.

        Args:
            task_id: the task x.
            successes: traces ``[S]`` of that task, in slot order; at least one.

        Raises:
            ValueError: the rule ``all``, which chooses none.
        """
        if self.rule == "all":
            raise ValueError("rule=all puts every success; use a cache with another rule")
        with read_lock(self):
            count = self._refreshes.get(task_id, 0)
        return successes[choose(successes, self.rule, seed=self.seed, task_id=task_id, count=count)]

    def put(self, task_id: str, trace: TensorDictBase) -> None:
        """Puts a trace ``[S]`` of this task (a LEVEL-1 seed, a converted trace) as its newest.

        Raises:
            TypeError: no tensordict, as a list of rows.
            KeyError: its rows lack a key that describes their origin.
            ValueError: a trace of another task, or one that did not succeed.
            CacheFullError: see ``when_full``.
        """
        with write_lock(self):
            _check_task(task_id, trace)
            self.sampler.add(self.writer.add(trace))

    def get_trace(self, task_id: str, default: Any = None) -> Any:
        """A copy of the task's trace ``[S]``, or ``default``.

        Of several traces one is chosen at random; the choice changes with :meth:`note_injection`, not with each call.
        """
        with write_lock(self):
            slot = self._current_slot(task_id)
            if slot is None:
                return default
            self._index.touch(task_id)
            return self.storage.get(slot)

    def _current_slot(self, task_id: str) -> int | None:
        slots = self._index.slots.get(task_id)
        if not slots:
            return None
        count = self._injections.get(task_id, 0)
        return slots[draw(len(slots), seed=self.seed, task_id=task_id, stream=Stream.CACHE_INJECTION, count=count)]

    def contains(self, task_id: str) -> bool:
        """Whether there is a trace for the task."""
        with read_lock(self):
            return task_id in self._index.slots

    __contains__ = contains

    def discard(self, task_id: str) -> bool:
        """Removes the task's traces, also from batches sampled ahead; False if there was none."""
        with prefetched_discarded(self), write_lock(self):
            if task_id not in self._index.slots:
                return False
            self._index.remove(task_id)
            return True

    def task_ids(self) -> list[str]:
        """The tasks with a trace, the least recently used first."""
        with read_lock(self):
            return list(self._index.slots)

    def metadata(self, task_id: str) -> TraceMetadata:
        """Metadata of the trace that :meth:`get_trace` would return.

        Raises:
            KeyError: no trace for the task.
        """
        with read_lock(self):
            slot = self._current_slot(task_id)
            if slot is None:
                raise KeyError(f"no trace of task {task_id!r} in the cache; check contains() first")
            return self._index.metadata[slot]

    def all_metadata(self, task_id: str) -> list[TraceMetadata]:
        """Metadata of all traces of the task, oldest first."""
        with read_lock(self):
            return [self._index.metadata[slot] for slot in self._index.slots.get(task_id, [])]

    def note_injection(self, task_id: str) -> TraceMetadata:
        """Counts one injection of the trace that :meth:`get_trace` returned; returns its metadata.

        Raises:
            KeyError: no trace for the task.
        """
        with write_lock(self):
            noted = self.metadata(task_id)
            noted = replace(noted, injected=noted.injected + 1)
            self._index.metadata[cast(int, self._current_slot(task_id))] = noted
            self._injections[task_id] = self._injections.get(task_id, 0) + 1
            return noted

    def counts(self, task_id: str) -> tuple[int, int]:
        """How often a trace of the task was injected, and how often the task was refreshed, in all."""
        with read_lock(self):
            return self._injections.get(task_id, 0), self._refreshes.get(task_id, 0)

    def stats(self) -> dict[str, int | float | bool]:
        """TorchRL's counters and ours: tasks, refreshes, injections, evictions."""
        with read_lock(self):
            mine = {
                "tasks": len(self._index.slots),
                "refreshes": sum(self._refreshes.values()),
                "injections": sum(self._injections.values()),
                "evictions": self._index.evictions,
            }
            return dict(super().stats()) | mine

    def empty(self, empty_write_count: bool = True) -> None:
        """Removes every trace, also from batches sampled ahead.

        Args:
            empty_write_count: whether to reset the counts of refreshes and injections, too.
        """
        with prefetched_discarded(self), write_lock(self):
            super().empty(empty_write_count=empty_write_count)
            if empty_write_count:
                self._refreshes.clear()
                self._injections.clear()

    def state_dict(self) -> dict[str, Any]:
        """The whole cache as tensors, text, bytes and numbers, as TorchRL's checkpoint adapters accept it."""
        with write_lock(self):
            return self._state().as_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the content by a :meth:`state_dict`; on an error the cache is unchanged.

        The state of a sampler that was set by ``set_sampler`` is part of it. A state without one leaves the sampler as
        it is.

        Raises:
            FolderError: a state of another version or kind, one that exceeds this cache's limits, or that of another
                sampler.
        """
        self._restore(check_state(state_dict))

    def dumps(self, path: str | Path) -> None:
        """Saves the cache as a folder, atomically; replaces an earlier one at ``path``.

        Raises:
            FolderError: ``path`` is something else, writing failed, or the sampler has a state that a folder cannot
                hold; ``path`` is unchanged.
            TypeError: an entry of a trace that is not a tensor, text, bytes or number; so in :meth:`state_dict`.
        """
        with write_lock(self):
            state = self._state()
        write_state(path, state)

    def loads(self, path: str | Path) -> None:
        """Replaces the content by a folder that :meth:`dumps` wrote; on an error the cache is unchanged.

        Raises:
            FolderError: the folder is missing, damaged, of another format or version, exceeds this cache's limits, or
                has the state of another sampler.
        """
        self._restore(read_state(path))

    def _state(self) -> CacheState:
        sampler = dict(self.sampler.state_dict())
        return CacheState(
            seed=self.seed,
            index=self._index.state_dict(),
            refreshes=dict(self._refreshes),
            injections=dict(self._injections),
            traces=cast(TraceStorage, self.storage).state_dict()["_storage"],
            sampler={"kind": type(self.sampler).__name__, "state": deepcopy(sampler)} if sampler else None,
        )

    def _restore(self, state: CacheState) -> None:
        traces = [trace_from_plain(rows) for rows in state.traces]
        if len(traces) != len(state.index["metadata"]):
            raise FolderError(f"the saved cache has {len(traces)} traces, its index {len(state.index['metadata'])}")
        with prefetched_discarded(self), write_lock(self):
            sampler = self._restored_sampler(state.sampler)
            self._index.load_state_dict(state.index)  # raises before anything is changed
            cast(TraceStorage, self.storage).replace(traces)
            self.seed = state.seed
            self._refreshes, self._injections = dict(state.refreshes), dict(state.injections)
            if sampler is not None:
                self.sampler.load_state_dict(sampler)

    def _restored_sampler(self, saved: dict[str, Any] | None) -> dict[str, Any] | None:
        """The state that the sampler can load, None without one. Raises FolderError: it is another sampler's."""
        if saved is None:
            return None
        kind, state = saved["kind"], saved["state"]
        if kind != type(self.sampler).__name__:
            raise FolderError(
                f"the saved cache has the state of a {kind}, this one a {type(self.sampler).__name__}; "
                f"call set_sampler with a {kind} first"
            )
        try:
            deepcopy(self.sampler).load_state_dict(deepcopy(state))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise FolderError(f"the saved state of the sampler {kind} cannot be loaded: {problem}") from error
        return cast(dict[str, Any], deepcopy(state))
