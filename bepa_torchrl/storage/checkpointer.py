"""RowStorageCheckpointer: lets TorchRL save a list storage of rows, including text."""

from __future__ import annotations

from pathlib import Path

from tensordict import TensorDictBase
from torchrl.data import ListStorage
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from bepa_torchrl.storage.row_codec import load_rows, save_rows
from bepa_torchrl.torchrl_private import empty_storage


class RowStorageCheckpointer(StorageCheckpointerBase):
    """For a ``ListStorage`` or ``LazyStackStorage`` whose items are rows ``[]``; ``checkpointer=`` of a replay buffer.

    ``dumps`` writes the folder of :func:`~bepa_torchrl.storage.save_rows`; ``loads`` reads all of it, then replaces the
    storage's content.
    """

    def dumps(self, storage: ListStorage, path: str | Path) -> None:
        """Raises FolderError if writing fails, TypeError for an entry that cannot be saved."""
        rows: list[TensorDictBase] = [storage.get(i) for i in range(len(storage))]
        save_rows(path, rows)

    def loads(self, storage: ListStorage, path: str | Path) -> None:
        """Raises FolderError for a folder that is missing, damaged, or of another format or version."""
        rows = load_rows(path)
        empty_storage(storage)
        for i, row in enumerate(rows):
            storage.set(i, row)
