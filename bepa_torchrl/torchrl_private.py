"""Every use of a private member of TorchRL or tensordict, each with its reason; other modules use public ones.

Tested: torchrl 0.14.1 with tensordict 0.14.3 and torch 2.13. ``pyproject.toml`` accepts torchrl from 0.14.1 to below
0.15; the upper bound is there for this module. All names below are of torchrl 0.14.1; the tests of the cache, the
collector and the losses fail if a newer version has changed one of them.

Not listed are the methods that TorchRL defines for its subclasses to implement, underscore or not: ``EnvBase._reset``,
``_step`` and ``_set_seed``, ``LossModule._AcceptedKeys`` and ``_forward_value_estimator_keys``, and
``WeightSyncScheme._init_on_sender_impl``. ``osworld_gym`` has one private use, in ``torchrl_env/memmap_text.py``.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from tensordict import TensorDict
from torch._C._functorch import TransformType, get_interpreter_stack
from torchrl.collectors import Collector
from torchrl.data import ListStorage, ReplayBuffer, Storage, Writer


class WholeEpisodeCollector(Collector):
    """A collector whose ``rollout`` starts the desktops itself.

    Private: ``_make_carrier``, ``_maybe_make_final_rollout``, ``_carrier``. The constructor of ``Collector`` resets the
    whole environment, which takes minutes on real desktops, and calls the policy once to size its buffers; there is no
    argument that leaves this out.
    """

    def _make_carrier(self) -> None:
        self._carrier = TensorDict({}, batch_size=self.env.batch_size)

    def _maybe_make_final_rollout(self, make_rollout: bool) -> None:
        assert not make_rollout, "a collector of whole episodes has no buffers; pass use_buffers=False"


class RemovableListStorage(ListStorage):
    """A list storage from which single items can be removed, and which spawned workers can copy.

    Private: ``_storage`` and ``_bump_mutation_revision``. A ``ListStorage`` can only be emptied as a whole, and
    samplers that keep indices learn of a removal by the revision. Its ``__getstate__`` refuses to be pickled for a
    spawned process, where a copy is what is wanted; the one of ``Storage`` allows it.
    """

    @property
    def items(self) -> list[Any]:
        """The stored items themselves, not copies."""
        return self._storage

    def remove(self, index: int) -> int | None:
        """Removes a slot by moving the last one there; returns the index that moved, or None if it was the last."""
        last = self._storage.pop()
        moved = None
        if index < len(self._storage):
            self._storage[index] = last
            moved = len(self._storage)
        self._bump_mutation_revision()
        return moved

    def replace(self, items: list[Any]) -> None:
        """Replaces the content by these items, without copying."""
        self._storage = items
        self._bump_mutation_revision()

    def __getstate__(self) -> dict[str, Any]:
        return cast(dict[str, Any], super(ListStorage, self).__getstate__())


class CountingWriter(Writer):
    """A writer that chooses its slots itself and reports how many items it has written.

    Private: ``_write_count``, which ``ReplayBuffer.write_count`` and ``stats`` read of any writer; ``_storage``, for
    which ``Writer`` has no public name; ``_attached_entities_iter``, by which a writer tells samplers of a new item;
    and ``_empty``, which ``ReplayBuffer.empty`` calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self._write_count = 0

    @property
    def storage(self) -> Storage:
        """The storage of the buffer."""
        return self._storage

    @property
    def write_count(self) -> int:
        """Items written so far."""
        return self._write_count

    @write_count.setter
    def write_count(self, count: int) -> None:
        self._write_count = count

    def mark_updated(self, index: int) -> None:
        """Tells everything attached to the storage that a slot has another item."""
        for entity in self._storage._attached_entities_iter():
            entity.mark_update(index)

    @abc.abstractmethod
    def clear(self, empty_write_count: bool = True) -> None:
        """Forgets every item; with ``empty_write_count`` also how many were written."""

    def _empty(self, empty_write_count: bool = True) -> None:
        self.clear(empty_write_count)


def read_lock(buffer: ReplayBuffer) -> AbstractContextManager[Any]:
    """The lock under which a buffer reads, which the same thread may take again.

    Private: ``_replay_lock``. A method that reads several things of a buffer must exclude the buffer's own writes, and
    a lock of its own would not.
    """
    return cast(AbstractContextManager[Any], buffer._replay_lock)


@contextmanager
def write_lock(buffer: ReplayBuffer) -> Iterator[None]:
    """Both locks of a buffer, in the order in which TorchRL takes them.

    Private: ``_replay_lock`` and ``_write_lock``, for the reason of :func:`read_lock`.
    """
    with buffer._replay_lock, buffer._write_lock:
        yield


@contextmanager
def prefetched_discarded(buffer: ReplayBuffer) -> Iterator[None]:
    """Discards the batches that a buffer has sampled ahead, unless the block raises; none is sampled meanwhile.

    Private: ``_futures_lock`` and ``_prefetch_queue``. Only the buffer's own ``load_state_dict`` discards them, and
    ``synchronize`` keeps them. Samples take :func:`read_lock`, so the block, and not its caller, takes that one.
    """
    with buffer._futures_lock:
        wait(buffer._prefetch_queue)
        yield
        buffer._prefetch_queue.clear()


def empty_storage(storage: Storage) -> None:
    """Removes all items of a storage.

    Private: ``_empty``. Only a buffer has a public ``empty``, and a storage's checkpointer gets no buffer.
    """
    storage._empty()


def inside_vmap() -> bool:
    """Whether the caller runs inside ``torch.vmap``.

    Private: ``torch._C._functorch`` of torch 2.13, since torch has no public function for it. Rows that differ in
    length cannot be mapped over, and the error inside would name an operator instead of the cause.
    """
    return any(level.key() == TransformType.Vmap for level in get_interpreter_stack() or ())
