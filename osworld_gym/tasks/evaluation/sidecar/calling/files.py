"""Checks a file against the limits before an evaluator reads it: what it unpacks to, and the size of images.

A zip or tar file states the sizes of its members, and what reads them stops there. A compressed stream states nothing
and is unpacked up to the limit.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

from PIL import Image

from .limits import Exhausted, Limits

CHUNK = 1 << 20  # bytes
HEAD = 512  # bytes that show the format; a tar header
#: the first bytes of a compressed stream → its reader
_STREAMS: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
#: what the readers raise for malformed files, which the metric reports
_MALFORMED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError),
    *(OSError, EOFError, ValueError, LookupError, TypeError, SyntaxError, NotImplementedError, RuntimeError),
)


def check_file(file: bytes | IO[bytes], limits: Limits) -> None:
    """Returns if a file stays within the limits, or is malformed, which is for its metric to find.

    Args:
        file: its bytes, or the file opened for reading.
        limits: limits on everything in the file together.

    Raises:
        Exhausted: the file exceeds one of them, which the message names.
    """
    _Count(limits).check(io.BytesIO(file) if isinstance(file, bytes) else file, 0)


class _Count:
    """The counts of one file."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._bytes, self._members = limits, 0, 0

    def check(self, file: IO[bytes], depth: int) -> None:
        """Counts what a file contains; ``depth`` is the number of archives around it."""
        head = file.read(HEAD)
        stream = next((opened for start, opened in _STREAMS.items() if head.startswith(start)), None)
        packed = zipfile.is_zipfile(file)
        file.seek(0)
        try:
            if stream is not None:
                self._stream(stream(file), self._below(depth))
            elif packed:
                self._zip(file, self._below(depth))
            elif head[257:262] == b"ustar":
                self._tar(file, self._below(depth))
            else:
                self._image(file)
        except _MALFORMED:
            return

    def _below(self, depth: int) -> int:
        if depth >= self._limits.nesting:
            raise Exhausted(f"more than {self._limits.nesting} archives are inside each other")
        return depth + 1

    def _add(self, size: int, members: int = 1) -> None:
        self._bytes, self._members = self._bytes + size, self._members + members
        if self._bytes > self._limits.unpacked:
            raise Exhausted(f"it unpacks to more than {self._limits.unpacked} bytes")
        if self._members > self._limits.members:
            raise Exhausted(f"it contains more than {self._limits.members} files")

    def _zip(self, file: IO[bytes], depth: int) -> None:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            for member in members:
                self._add(member.file_size)
            for member in members:
                try:
                    inside = archive.read(member)
                except _MALFORMED:
                    continue
                self.check(io.BytesIO(inside), depth)

    def _tar(self, file: IO[bytes], depth: int) -> None:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                self._add(member.size)
                inside = archive.extractfile(member) if member.isreg() else None
                if inside is not None:
                    self.check(io.BytesIO(inside.read()), depth)

    def _stream(self, stream: IO[bytes], depth: int) -> None:
        content = io.BytesIO()
        while part := stream.read(CHUNK):
            self._add(len(part), members=0)
            content.write(part)
        content.seek(0)
        self.check(content, depth)

    def _image(self, file: IO[bytes]) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # ours is the lower limit
                width, height = Image.open(file).size  # reads the header only
        except Image.DecompressionBombError as error:
            raise Exhausted(str(error)) from error
        if width * height > self._limits.pixels:
            raise Exhausted(f"an image has {width} x {height} pixels, more than {self._limits.pixels}")
