"""Metrics on archives: compare their files by name."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

from osworld_gym.tasks.evaluation.osworld.metrics.documents import compare_docx_files
from osworld_gym.tasks.evaluation.osworld.metrics.pictures import compare_images
from osworld_gym.tasks.evaluation.osworld.metrics.text import compare_csv, compare_text_file
from osworld_gym.tasks.evaluation.sidecar.calling import RuleError

#: file_type → metric of one file (:data:`osworld_gym.tasks.evaluation.osworld.CHOICES`)
_BY_TYPE: dict[str, Callable[..., float]] = {
    "text": compare_text_file,
    "docx": compare_docx_files,
    "image": compare_images,
    "csv": compare_csv,
}
#: path → bytes of a file, or None for a folder
Entries = dict[PurePosixPath, bytes | None]


def _entries(archive: bytes) -> tuple[str, Entries]:
    """``zip`` or ``tar``, and what the archive has when it is unpacked, folders of its files included."""
    if zipfile.is_zipfile(io.BytesIO(archive)):
        kind, members = "zip", list(_zip(archive))
    else:
        kind, members = "tar", list(_tar(archive))
    entries: Entries = {}
    for name, data in members:
        path = PurePosixPath(name)
        entries |= dict.fromkeys(parent for parent in path.parents if parent.name)
        entries[path] = data
    return kind, entries


def _zip(archive: bytes) -> Iterator[tuple[str, bytes | None]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        for info in packed.infolist():
            if not info.filename.startswith("/") and ".." not in info.filename:  # not unpacked by OSWorld either
                yield info.filename, None if info.is_dir() else packed.read(info)


def _tar(archive: bytes) -> Iterator[tuple[str, bytes | None]]:
    """The members; a link counts as the file that it is, and a path outside the archive is malformed."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tape:
        for member in tape.getmembers():
            if member.name.startswith("/") or ".." in PurePosixPath(member.name).parts:
                raise ValueError(f"the archive has the path {member.name!r}")
            file = tape.extractfile(member)
            if file is None and not member.isdir():
                raise ValueError(f"{member.name!r} is neither a file nor a folder")
            yield member.name, None if file is None else file.read()


def compare_archive(
    actual: bytes | None, expected: bytes, *, file_path: str = "", file_type: str = "text", **options: Any
) -> float:
    """Mean score of the files in the folder ``file_path`` of both archives; 0 when the names in it differ.

    Names of folders count. Both must be of the same kind, zip or tar, where OSWorld goes by the files' names.

    Raises:
        RuleError: ``file_type`` is not one of text, docx, image, csv.
        FileNotFoundError: an archive has no folder ``file_path``.
        IsADirectoryError: a folder is among the names that both have.
    """
    if not actual:
        return 0.0
    if file_type not in _BY_TYPE:
        raise RuleError(f"compare_archive: expected a file_type of {', '.join(_BY_TYPE)}, got {file_type!r}")
    (kind, left), (other, right) = _entries(actual), _entries(expected)
    one, two = _listed(left, file_path), _listed(right, file_path)
    if kind != other or sorted(one) != sorted(two):
        return 0.0
    return sum(_BY_TYPE[file_type](_file(one, name), _file(two, name), **options) for name in one) / len(one)


def _listed(entries: Entries, folder: str) -> dict[str, bytes | None]:
    """Name → bytes (or None for a folder) of what is directly in the folder."""
    start = PurePosixPath(folder)
    if start.name and (start not in entries or entries[start] is not None):
        raise FileNotFoundError(f"the archive has no folder {folder!r}")
    return {path.name: data for path, data in entries.items() if path.parent == start and path.name}


def _file(listed: dict[str, bytes | None], name: str) -> bytes:
    data = listed[name]
    if data is None:
        raise IsADirectoryError(name)
    return data


def compare_zip_files(actual: bytes | None, expected: bytes) -> float:
    """1 when both zip files have the same files and folders, byte by byte (OSWorld compares PDF files by text)."""
    return 0.0 if not actual else float(_members(actual) == _members(expected))


def _members(archive: bytes) -> dict[str, bytes]:
    """Name → bytes of every member; those of a folder are empty, and its name ends with a slash."""
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        return {info.filename: packed.read(info.filename) for info in packed.infolist()}
