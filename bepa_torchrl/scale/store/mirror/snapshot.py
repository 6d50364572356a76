"""Snapshots of a folder in an object store: chunks named by their hash, and one marker object written last.

    <run>/objects/<2 hex>/<sha256>    a chunk of a file, at most 8 MiB; a screenshot is one chunk
    <run>/snapshots/<number>          every file's path, size and chunks; created exclusively after all its chunks

A snapshot is whole if its marker exists. Numbers increase; two writers of one run cannot create the same marker, so the
second finds out that the first exists.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from bepa_torchrl.scale.store.objects.base import ObjectStore

CHUNK = 8 << 20  #: bytes
FORMAT, VERSION = "bepa_torchrl.run_snapshot", 1
_OBJECTS, _SNAPSHOTS = "objects", "snapshots"


class SnapshotError(ValueError):
    """A run in a store is damaged, written by another process, or of another version."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a snapshot: its size in bytes and the sha256 of each chunk, in order."""

    size: int
    chunks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a folder.

    Args:
        number: 1 for a run's first.
        writer: random id of the folder it is a copy of.
        files: relative path with ``/`` to content.
    """

    number: int
    writer: str
    files: Mapping[str, StoredFile]

    def chunks(self) -> set[str]:
        """The hashes of all chunks."""
        return {chunk for file in self.files.values() for chunk in file.chunks}


class RunStore:
    """The snapshots of one run.

    Args:
        store: where they are.
        run: the folder's name in the store.
    """

    def __init__(self, store: ObjectStore, run: str) -> None:
        self.store, self.run = store, run
        self.url = f"{store.url.rstrip('/')}/{run}"

    def numbers(self) -> list[int]:
        """The numbers of the whole snapshots, the newest first. Raises StorageError."""
        names = [key.rpartition("/")[2] for key in self.store.list(f"{self.run}/{_SNAPSHOTS}")]
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)

    def read(self, number: int) -> Snapshot:
        """One snapshot.

        Raises:
            SnapshotError: damaged, or of another format or version.
            StorageError, FileNotFoundError: it cannot be read.
        """
        return _decode(self.store.get(self._marker(number)), f"{self.url}: snapshot {number}", number)

    def publish(self, snapshot: Snapshot) -> None:
        """Creates the marker; all chunks must have been written.

        Raises:
            SnapshotError: another writer has published a snapshot of this number.
            StorageError: the store cannot be written.
        """
        try:
            self.store.create(self._marker(snapshot.number), _encode(snapshot))
        except FileExistsError:
            if self.read(snapshot.number) != snapshot:  # else an earlier attempt arrived and its reply was lost
                raise SnapshotError(
                    f"{self.url}: another process has written snapshot {snapshot.number}, so this run goes on there; "
                    "end one of the two, and start this one with another name="
                ) from None

    def remove(self, number: int) -> None:
        """Removes a marker; its chunks remain."""
        self.store.delete(self._marker(number))

    def chunks(self) -> set[str]:
        """The hashes of all stored chunks."""
        return {key.rpartition("/")[2] for key in self.store.list(f"{self.run}/{_OBJECTS}")}

    def put_chunk(self, digest: str, data: bytes) -> None:
        """Writes a chunk."""
        self.store.put(self._object(digest), data)

    def get_chunk(self, digest: str) -> bytes:
        """A chunk, verified.

        Raises:
            SnapshotError: it is missing or damaged.
            StorageError: the store cannot be read.
        """
        try:
            data = self.store.get(self._object(digest))
        except FileNotFoundError:
            raise SnapshotError(f"{self.url}: object {digest} is missing") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise SnapshotError(f"{self.url}: object {digest} is damaged")
        return data

    def remove_chunk(self, digest: str) -> None:
        """Removes a chunk."""
        self.store.delete(self._object(digest))

    def _marker(self, number: int) -> str:
        return f"{self.run}/{_SNAPSHOTS}/{number:012d}"

    def _object(self, digest: str) -> str:
        return f"{self.run}/{_OBJECTS}/{digest[:2]}/{digest}"


def _encode(snapshot: Snapshot) -> bytes:
    """Compressed JSON after its sha256."""
    files = {path: [file.size, *file.chunks] for path, file in snapshot.files.items()}
    body = {"format": FORMAT, "version": VERSION, "number": snapshot.number, "writer": snapshot.writer, "files": files}
    data = zlib.compress(json.dumps(body, separators=(",", ":")).encode())
    return hashlib.sha256(data).digest() + data


def _decode(data: bytes, what: str, number: int) -> Snapshot:
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise SnapshotError(f"{what} is damaged")
    body = json.loads(zlib.decompress(data[32:]))
    if (body["format"], body["version"]) != (FORMAT, VERSION):
        raise SnapshotError(
            f"{what} is {body['format']} version {body['version']}, this program reads {FORMAT} version {VERSION}; "
            "use the program that wrote it"
        )
    files = {path: StoredFile(size, tuple(chunks)) for path, (size, *chunks) in body["files"].items()}
    return Snapshot(number, body["writer"], files)
