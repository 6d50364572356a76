"""Saves rows in a folder: tensors as safetensors, text as JSON, each image once, named by its sha256.

<name>/tensors.safetensors   every tensor of these rows, unpadded
<name>/rows.json             per row a list of [key, value]; tensors and bytes by reference
images/<sha256>.png          shared by all row lists of the folder
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import load, save
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from bepa_torchrl.storage.folder import FolderError, read_folder, write_folder
from bepa_torchrl.storage.plain import PlainRow, plain_row, row_from_plain

FORMAT, VERSION = "bepa_torchrl.data.step_rows", 1


class FileWriter(Protocol):
    """Receives named files: a :class:`~bepa_torchrl.storage.folder.FolderWriter`, or memory."""

    def add(self, name: str, data: bytes) -> None: ...

    def add_blob(self, folder: str, data: bytes) -> str: ...


class FileReader(Protocol):
    """Returns the files that a :class:`FileWriter` received."""

    def get(self, name: str) -> bytes: ...


def save_rows(path: str | Path, rows: Sequence[TensorDictBase]) -> None:
    """Writes rows (each ``[]``, keys may differ) as one folder, atomically.

    Raises:
        TypeError: an entry that is not a tensor, text, bytes or number.
        FolderError: see :func:`~bepa_torchrl.storage.folder.write_folder`.
    """
    plain = [plain_row(row) for row in rows]
    write_folder(path, format=FORMAT, version=VERSION, meta={}, fill=lambda folder: add_plain(folder, "rows", plain))


def load_rows(path: str | Path) -> list[TensorDict]:
    """The rows that :func:`save_rows` wrote.

    Raises:
        FolderError: missing, damaged, or of another format or version.
    """
    return [row_from_plain(row) for row in get_plain(read_folder(path, format=FORMAT, version=VERSION), "rows")]


def add_plain(folder: FileWriter, name: str, rows: Sequence[PlainRow]) -> None:
    """Adds one list of plain rows to a folder that is being written, under the sub-folder ``name``."""
    tensors: dict[str, Tensor] = {}

    def reference(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors[str(len(tensors))] = value
            return {"tensor": str(len(tensors) - 1)}
        if isinstance(value, bytes):
            return {"bytes": folder.add_blob("images", value)}
        if isinstance(value, (tuple, list)):
            return {"tuple" if isinstance(value, tuple) else "list": [reference(part) for part in value]}
        return {"value": value}

    table = [[[list(key), reference(value)] for key, value in row] for row in rows]
    folder.add(f"{name}/tensors.safetensors", save(tensors))
    folder.add(f"{name}/rows.json", json.dumps(table).encode())


def get_plain(folder: FileReader, name: str) -> list[PlainRow]:
    """The list of plain rows that :func:`add_plain` wrote under ``name``.

    Raises:
        FolderError: the folder is damaged.
    """
    tensors = load(folder.get(f"{name}/tensors.safetensors"))
    blobs: dict[str, bytes] = {}

    def value_of(reference: dict[str, Any]) -> Any:
        ((kind, content),) = reference.items()
        if kind == "tensor":
            return tensors[content]
        if kind == "bytes":
            if content not in blobs:
                blobs[content] = folder.get(content)
            return blobs[content]
        if kind in ("tuple", "list"):
            return (tuple if kind == "tuple" else list)(value_of(part) for part in content)
        if kind == "value":
            return content
        raise FolderError(f"{name}/rows.json has an entry of kind {kind!r}; it was written by another program")

    table = json.loads(folder.get(f"{name}/rows.json"))
    return [[(tuple(key), value_of(reference)) for key, reference in row] for row in table]
