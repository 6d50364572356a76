"""Gives rank 0's rows to all ranks: tensors as safetensors, text as JSON, each image once; nothing is pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.distributed as dist
from tensordict import TensorDictBase

from bepa_torchrl.storage import add_plain, get_plain
from bepa_torchrl.storage.plain import plain_row, row_from_plain
from bepa_torchrl.training.rank_failures import rank_failures

_ROWS = "rows"
_CHUNK = 1 << 28  #: bytes per collective operation


def broadcast_rows(rows: Sequence[TensorDictBase] | None) -> list[TensorDictBase]:
    """Rank 0's rows, on every rank; every rank calls it.

    Args:
        rows: on rank 0 the rows, at least one, of tensors, text, bytes and numbers; None on the others.

    Returns:
        The same objects on rank 0, copies on the others.

    Raises:
        TypeError: a row has an entry of another type; nothing is sent.
        RankLostError: another rank has exited or is late.
    """
    sent = None if rows is None else bytearray(encode_rows(rows))
    size = torch.tensor([0 if sent is None else len(sent)])
    with rank_failures():
        dist.broadcast(size, src=0)
        data = bytearray(int(size)) if sent is None else sent
        for part in torch.frombuffer(data, dtype=torch.uint8).split(_CHUNK):
            dist.broadcast(part, src=0)
    return list(decode_rows(data) if rows is None else rows)


def encode_rows(rows: Sequence[TensorDictBase]) -> bytes:
    """Rows as bytes: the length of a JSON index (8 bytes), the index of files, the files."""
    files = _Files()
    plain = [plain_row(row) for row in rows]
    add_plain(files, _ROWS, plain)
    index = json.dumps([[name, len(data)] for name, data in files.contents.items()]).encode()
    return b"".join([len(index).to_bytes(8, "big"), index, *files.contents.values()])


def decode_rows(data: bytes | bytearray) -> list[TensorDictBase]:
    """The rows of :func:`encode_rows`; equal images are the same object."""
    first = 8 + int.from_bytes(data[:8], "big")
    index = json.loads(data[8:first])
    ends = accumulate((size for _, size in index), initial=first)
    view = memoryview(data)
    files = _Files({name: bytes(view[start : start + size]) for (name, size), start in zip(index, ends, strict=False)})
    return [row_from_plain(row) for row in get_plain(files, _ROWS)]


class _Files:
    """Named files in memory."""

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        self.contents = {} if contents is None else contents
        self._names: dict[int, str] = {}  # an image is in many rows, as the same object: it is hashed once

    def add(self, name: str, data: bytes) -> None:
        self.contents[name] = data

    def add_blob(self, folder: str, data: bytes) -> str:
        name = self._names.get(id(data))
        if name is None:
            name = self._names[id(data)] = f"{folder}/{hashlib.sha256(data).hexdigest()}"
            self.contents.setdefault(name, data)
        return name

    def get(self, name: str) -> bytes:
        return self.contents[name]
