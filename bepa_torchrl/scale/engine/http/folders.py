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
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bepa_torchrl.scale.wire.content import content_hash
from bepa_torchrl.scale.wire.errors import Refusal

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_FILES = (".json", ".safetensors", ".jinja", ".txt")
_HASHING = 4  #: threads
_WRITE = 4 << 20  #: bytes that are written at once


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


class UploadedFolders:
    """The folders that a server has, and is being given.

    Args:
        root: their folder; created if missing.
    """

    def __init__(self, root: Path) -> None:
        self.root, self._lock = root, threading.Lock()
        self._have: dict[bytes, Place] = {}
        self._wanted: dict[bytes, list[Place]] = {}  #: content that is missing, and where it belongs
        self._files: dict[str, dict[str, Segments]] = {}  #: by folder
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
            self._wanted.clear()  # of a folder that was given up
            known = self._files.get(name, {})
            self._files[name] = listed
            for file, parts in listed.items():
                path = self._path(name, file)
                if known.get(file) == parts and path.is_file():
                    continue
                part = _unfinished(path)  # an engine may have the old file open
                part.parent.mkdir(parents=True, exist_ok=True)
                with part.open("wb") as target:
                    target.truncate(sum(size for _, size in parts))
                offset = 0
                for content, size in parts:
                    place = Place(part, offset, size)
                    offset += size
                    source = self._have.get(content)
                    if source is None:
                        self._wanted.setdefault(content, []).append(place)
                    else:
                        _copy(source, place)
            return list(self._wanted)

    async def receive(self, content: bytes, parts: AsyncIterator[bytes]) -> None:
        """Writes a segment to where it belongs. Raises Refusal: it is not expected, or not that content."""
        places = self._wanted.get(content)
        if places is None:
            raise Refusal("sync", "this content is not expected; send the weights again")
        first, digest, written = places[0], hashlib.sha256(), 0
        with first.path.open("r+b") as file:
            file.seek(first.offset)

            def write(data: bytes) -> None:
                digest.update(data)
                file.write(data)

            waiting = bytearray()
            async for part in parts:
                written += len(part)
                if written > first.size:
                    raise Refusal("sync", f"expected a segment of {first.size} bytes, got more")
                waiting += part
                if len(waiting) >= _WRITE:
                    await asyncio.to_thread(write, bytes(waiting))
                    waiting.clear()
            await asyncio.to_thread(write, bytes(waiting))
        if digest.digest() != content:
            raise Refusal("failed", "a segment of the weights was changed or cut on its way")
        with self._lock:
            for place in places[1:]:
                _copy(first, place)
            self._wanted.pop(content, None)

    def finish(self, name: str) -> Path:
        """The folder. Raises Refusal: part of it was not sent."""
        with self._lock:
            files = self._files.get(name)
            if files is None or self._wanted:
                raise Refusal("sync", f"{name} was not uploaded whole; send the weights again")
            for file, parts in files.items():
                path, offset = self._path(name, file), 0
                if (part := _unfinished(path)).is_file():
                    part.replace(path)
                for content, size in parts:
                    self._have[content] = Place(path, offset, size)
                    offset += size
            return self.root / name

    def keep(self, *names: str) -> None:
        """Removes the other folders."""
        with self._lock:
            for old in [name for name in self._files if name not in names]:
                del self._files[old]
            self._have = {key: place for key, place in self._have.items() if place.path.parent.name in names}
            for folder in self.root.iterdir():
                if folder.name not in names:
                    shutil.rmtree(folder, ignore_errors=True)

    def _path(self, folder: str, file: str) -> Path:
        if not (_NAME.fullmatch(folder) and _NAME.fullmatch(file) and file.endswith(_FILES)):
            raise Refusal("refused", f"{folder}/{file} is no file of a checkpoint; expected *{', *'.join(_FILES)}")
        return self.root / folder / file


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
