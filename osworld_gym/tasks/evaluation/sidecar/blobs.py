"""Bytes in lines of JSON: short ones as base64, long ones as files of a folder that both processes can read."""

from __future__ import annotations

import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path

INLINE = 16 << 10  # bytes


class Blobs:
    """Writes the long ones of one evaluation; :meth:`close` removes those that were not read."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def add(self, data: bytes) -> dict[str, str]:
        """The JSON of some bytes."""
        if len(data) <= INLINE:
            return {"base64": b64encode(data).decode()}
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="osworld-gym-eval-")
        self._count += 1
        path = Path(self._folder.name) / str(self._count)
        path.write_bytes(data)
        return {"file": str(path)}

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def read_blob(blob: Mapping[str, str]) -> bytes:
    """The bytes; a file is removed."""
    if "base64" in blob:
        return b64decode(blob["base64"])
    path = Path(blob["file"])
    data = path.read_bytes()
    path.unlink()
    return data
