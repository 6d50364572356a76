"""Rows on disk: folders written atomically and verified by checksum when read, without pickle.

The public names are imported on first use: locks and JSON lines are read by commands that start without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "checkpointer": ("RowStorageCheckpointer",),
    "folder": ("FolderError", "FolderReader", "FolderWriter", "read_folder", "write_folder"),
    "plain": ("PlainRow", "plain_row", "row_from_plain"),
    "row_codec": ("add_plain", "get_plain", "load_rows", "save_rows"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
