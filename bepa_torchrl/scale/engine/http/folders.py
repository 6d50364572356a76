"""Folders of weights that cross by content: a tensor of a safetensors file that the server has is not sent again.

A file is a list of segments: each tensor of a ``*.safetensors`` and the header before them, or the whole of another
file. Both sides name a segment by its SHA-256; the received file has the same bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mmap
import re
import shutil
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, NamedTuple

from bepa_torchrl.scale.wire.content import content_hash
from bepa_torchrl.scale.wire.errors import Refusal

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_FILES = (".json", ".safetensors", ".jinja", ".txt")
_HASHING = 4  #: threads
_WRITE = 4 << 20  #: bytes that are written at once
GIVEN_UP = 1800.0  #: seconds without a request for an upload until its folder may be removed


Segments = list[tuple[bytes, int]]  #: hash and size of each


class Place(NamedTuple):
    """Where a segment is."""

    path: Path
    offset: int
    size: int


def manifest(folder: Path) -> tuple[dict[str, Segments], dict[bytes, Place]]:
    """The segments of a folder's files in their order, and where each content is."""
    files: dict[str, Segments] = {}
    places: dict[bytes, Place] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            found = _hashed(path)
            files[path.name] = [(name, place.size) for name, place in found]
            places |= dict(found)
    return files, places


def _hashed(path: Path) -> list[tuple[bytes, Place]]:
    if not path.stat().st_size:
        return []
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
        ThreadPoolExecutor(_HASHING) as threads,
    ):

        def hashed(part: tuple[int, int]) -> bytes:
            with view[slice(*part)] as segment:
                return content_hash(segment)

        parts = _boundaries(path, data)
        names = list(threads.map(hashed, parts))
    return [(name, Place(path, start, end - start)) for name, (start, end) in zip(names, parts, strict=True)]


def _boundaries(path: Path, data: mmap.mmap) -> list[tuple[int, int]]:
    """Start and end of each segment: those of the tensors, if it is a safetensors file."""
    starts = {0}
    if path.suffix == ".safetensors":
        first = 8 + int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:first])
        starts |= {first + entry["data_offsets"][0] for name, entry in tensors.items() if name != "__metadata__"}
    edges = [*sorted(start for start in starts if start < len(data)), len(data)]
    return list(pairwise(edges))


@dataclass(slots=True, eq=False)
class _Upload:
    """A folder that is being sent.

    Args:
        files: its files.
        wanted: content that is missing, and where it belongs.
        heard: when something of it was announced or sent last, by the monotonic clock.
    """

    files: dict[str, Segments]
    wanted: dict[bytes, list[Place]] = field(default_factory=dict)
    heard: float = field(default_factory=monotonic)

    def has(self, content: bytes) -> bool:
        """Whether the content is part of the folder."""
        return any(content == name for parts in self.files.values() for name, _ in parts)


class UploadedFolders:
    """The folders that a server has, and is being given; several may be sent at once.

    Args:
        root: their folder; created if missing.
    """

    def __init__(self, root: Path) -> None:
        self.root, self._lock = root, threading.Lock()
        self._have: dict[bytes, Place] = {}
        self._uploads: dict[str, _Upload] = {}  #: by folder, until it is finished
        self._files: dict[str, dict[str, Segments]] = {}  #: of finished folders
        root.mkdir(parents=True, exist_ok=True)

    def expect(self, name: str, files: Mapping[str, Sequence[Sequence[Any]]]) -> list[bytes]:
        """Prepares a folder's files from what is here; returns the hashes of what must be sent.

        Raises:
            Refusal: a name that is none of a checkpoint's, or no segments.
        """
        listed: dict[str, Segments] = {
            file: [(bytes(content), int(size)) for content, size in parts] for file, parts in files.items()
        }
        for file, parts in listed.items():
            self._path(name, file)
            if any(size < 0 or len(content) != 32 for content, size in parts):
                raise Refusal("refused", f"expected sizes and hashes of the segments of {file}")
        with self._lock:
            self._uploads.pop(name, None)  # given up, or its answer was lost
            upload = _Upload(listed)
            for file, parts in listed.items():
                self._prepare(upload, self._path(name, file), parts, self._files.get(name, {}).get(file))
            self._uploads[name] = upload
            return list(upload.wanted)

    def _prepare(self, upload: _Upload, path: Path, parts: Segments, known: Segments | None) -> None:
        """Makes the part of a file that is here, unless the whole file is; notes what is missing."""
        part = _unfinished(path)  # an engine may have the old file open
        part.unlink(missing_ok=True)  # who still writes to that of an upload before writes to no folder
        if known == parts and path.is_file():
            return
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as target:
            target.truncate(sum(size for _, size in parts))
        offset = 0
        for content, size in parts:
            place = Place(part, offset, size)
            offset += size
            source = self._have.get(content)
            if source is None:
                upload.wanted.setdefault(content, []).append(place)
            else:
                _copy(source, place)

    async def receive(self, content: bytes, parts: AsyncIterator[bytes]) -> None:
        """Writes a segment to where it belongs, in each folder that lacks it; one that is here is read and ignored.

        Raises:
            Refusal: it is not expected, or not that content.
        """
        found = await asyncio.to_thread(self._lacking, content)
        if found is None:  # the answer to a request before was lost, or another folder's upload had it, too
            async for _ in parts:
                pass
            return
        upload, first = found
        try:
            target = first.path.open("r+b")
        except FileNotFoundError:
            raise _replaced() from None
        with target as file:
            await _write(file, first, content, parts)
        await asyncio.to_thread(self._arrived, upload, content, first)

    def _lacking(self, content: bytes) -> tuple[_Upload, Place] | None:
        """An upload that lacks the content, and where; None: all have it. Raises Refusal: none expects it."""
        with self._lock:
            expecting = [upload for upload in self._uploads.values() if upload.has(content)]
            if not expecting and content not in self._have:
                raise Refusal("sync", "this content is not expected; send the weights again")
            for upload in expecting:
                upload.heard = monotonic()
            return next(((upload, upload.wanted[content][0]) for upload in expecting if content in upload.wanted), None)

    def _arrived(self, upload: _Upload, content: bytes, first: Place) -> None:
        """Copies a segment from where it was written to where else it belongs.

        Raises:
            Refusal: the upload that it was written for is no more.
        """
        with self._lock:
            if upload not in self._uploads.values():
                raise _replaced()
            if content not in upload.wanted:
                return  # another request has brought it meanwhile
            for each in self._uploads.values():
                for place in each.wanted.get(content, ()):
                    if place != first:
                        _copy(first, place)
                each.wanted.pop(content, None)
            upload.heard = monotonic()

    def finish(self, name: str) -> Path:
        """The folder. Raises Refusal: part of it was not sent."""
        with self._lock:
            upload = self._uploads.get(name)
            if upload is None and name in self._files:
                return self.root / name
            if upload is None or upload.wanted:
                raise Refusal("sync", f"{name} was not uploaded whole; send the weights again")
            for file, parts in upload.files.items():
                self._complete(self._path(name, file), parts)
            del self._uploads[name]
            self._files[name] = upload.files
            return self.root / name

    def _complete(self, path: Path, parts: Segments) -> None:
        """Puts a file that has come in its place."""
        if (part := _unfinished(path)).is_file():
            part.replace(path)
            self._have = {content: place for content, place in self._have.items() if place.path != path}
        offset = 0
        for content, size in parts:
            self._have[content] = Place(path, offset, size)
            offset += size

    def keep(self, *names: str) -> None:
        """Removes the other folders, and uploads of which nothing has come for :data:`GIVEN_UP` seconds."""
        with self._lock:
            recent = monotonic() - GIVEN_UP
            kept = {*names, *(name for name, upload in self._uploads.items() if upload.heard > recent)}
            self._uploads = {name: upload for name, upload in self._uploads.items() if name in kept}
            self._files = {name: files for name, files in self._files.items() if name in kept}
            self._have = {key: place for key, place in self._have.items() if place.path.parent.name in kept}
            for folder in self.root.iterdir():
                if folder.name not in kept:
                    shutil.rmtree(folder, ignore_errors=True)

    def _path(self, folder: str, file: str) -> Path:
        if not (_NAME.fullmatch(folder) and _NAME.fullmatch(file) and file.endswith(_FILES)):
            raise Refusal("refused", f"{folder}/{file} is no file of a checkpoint; expected *{', *'.join(_FILES)}")
        return self.root / folder / file


async def _write(file: BinaryIO, place: Place, content: bytes, parts: AsyncIterator[bytes]) -> None:
    """Writes a segment to its place in a file. Raises Refusal: it is longer, or not that content."""
    digest, written = hashlib.sha256(), 0
    file.seek(place.offset)

    def write(data: bytes) -> None:
        digest.update(data)
        file.write(data)

    waiting = bytearray()
    async for part in parts:
        written += len(part)
        if written > place.size:
            raise Refusal("sync", f"expected a segment of {place.size} bytes, got more")
        waiting += part
        if len(waiting) >= _WRITE:
            await asyncio.to_thread(write, bytes(waiting))
            waiting.clear()
    await asyncio.to_thread(write, bytes(waiting))
    if digest.digest() != content:
        raise Refusal("failed", "a segment of the weights was changed or cut on its way")


def _replaced() -> Refusal:
    return Refusal("failed", "the folder was announced again, or removed, while a segment of it was sent")


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _copy(source: Place, target: Place) -> None:
    """Copies a segment between files, or within one."""
    with source.path.open("rb") as read, target.path.open("r+b") as write:
        read.seek(source.offset)
        write.seek(target.offset)
        left = source.size
        while left:
            data = read.read(min(left, _WRITE))
            if not data:
                raise OSError(f"{source.path} has become shorter")
            write.write(data)
            left -= len(data)
