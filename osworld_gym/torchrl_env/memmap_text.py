"""Makes TorchRL's memory-mapped storages keep text: without it, every row of a ``LazyMemmapStorage`` has the first's.

TorchRL (0.14.1, since pull request 3323) filters the rows that are written to a locked storage by the storage's keys,
and its list of those leaves out text and bytes, which are then dropped without a word. No storage has an option for it,
so this completes the list, for every storage of the process. ``test_torchrl_still_drops_text_from_memmap_storages``
fails when TorchRL has corrected it; then this file can be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection
from torchrl.data.replay_buffers.storages import TensorStorage


def keep_text_in_memmap_storages() -> None:
    """Adds text and bytes to the keys that locked storages accept; a second call does nothing."""
    stock = TensorStorage._storage_keys
    if isinstance(stock, _KeysWithText):
        return
    TensorStorage._storage_keys = _KeysWithText(stock.fget, stock.fset)


class _KeysWithText(property):
    """TorchRL's property, with the names of text and bytes in addition."""

    def __get__(self, storage: Any, owner: type | None = None) -> Any:
        keys = super().__get__(storage, owner)
        if storage is None or keys is None:
            return keys
        return list(dict.fromkeys([*keys, *_text_keys(storage._storage)]))


def _text_keys(rows: TensorDictBase, *above: str) -> Iterator[str | tuple[str, ...]]:
    for name, value in rows.items():
        if is_non_tensor(value):
            yield (*above, name) if above else name
        elif is_tensor_collection(value):
            yield from _text_keys(value, *above, name)
