"""Rows on disk: folders written atomically and verified by checksum when read, without pickle.

The public names are imported on first use: locks and JSON lines are read by commands that start without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.storage.checkpointer import RowStorageCheckpointer
    from bepa_torchrl.storage.folder import FolderError, FolderReader, FolderWriter, read_folder, write_folder
    from bepa_torchrl.storage.plain import PlainRow, plain_row, row_from_plain
    from bepa_torchrl.storage.row_codec import add_plain, get_plain, load_rows, save_rows

__all__ = [
    "FolderError",
    "FolderReader",
    "FolderWriter",
    "PlainRow",
    "RowStorageCheckpointer",
    "add_plain",
    "get_plain",
    "load_rows",
    "plain_row",
    "read_folder",
    "row_from_plain",
    "save_rows",
    "write_folder",
]

__getattr__ = lazy_names(
    __name__,
    {
        "checkpointer": ("RowStorageCheckpointer",),
        "folder": ("FolderError", "FolderReader", "FolderWriter", "read_folder", "write_folder"),
        "plain": ("PlainRow", "plain_row", "row_from_plain"),
        "row_codec": ("add_plain", "get_plain", "load_rows", "save_rows"),
    },
)
