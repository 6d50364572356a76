"""Atomic writes: files and folders appear complete or not at all, and survive a power failure once the call returns.

Everything is written under a hidden temporary name in the target's folder, flushed to disk (``fsync``), and renamed;
the rename is flushed too. If a write fails, the target is unchanged and the temporary entry is removed.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_RANDOM = 6  #: bytes of randomness in a temporary name


def check_writable(folder: Path) -> None:
    """Makes and removes a folder in the nearest existing parent. Raises OSError if that is impossible."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    Path(tempfile.mkdtemp(prefix=".bepa-", dir=folder)).rmdir()


def write_bytes(path: Path, data: bytes, *, durable: bool = True, mode: int | None = None) -> None:
    """Replaces one file.

    Args:
        path: the file; missing parent folders are created.
        data: the new content of the file.
        durable: flush to disk. False for many small files that can be recreated, where flushing would be slow; the
            write is still atomic as long as the machine does not crash.
        mode: its permissions, set before data is written; None: the default for new files.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    with replaced_file(path, durable=durable, mode=mode) as file:
        file.write(data)


def write_text(path: Path, text: str, *, durable: bool = True, mode: int | None = None) -> None:
    """Replaces one text file, in UTF-8; see :func:`write_bytes`."""
    write_bytes(path, text.encode("utf-8"), durable=durable, mode=mode)


@contextmanager
def replaced_file(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[IO[bytes]]:
    """A new binary file that replaces ``path`` when the block ends without an exception.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _hidden(path)
    try:
        with part.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        if durable:
            sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_with(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces a file by the one that ``write(temporary path)`` creates, for libraries that require a path.

    The temporary path has the suffix of ``path``.

    Raises:
        OSError: the file cannot be written; the old one is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _hidden(path)
    try:
        write(part)
        sync(part)
        part.replace(path)
        sync(path.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder that becomes ``path`` when the block ends without an exception.

    Raises:
        FileExistsError: ``path`` exists and is not an empty folder; it is unchanged.
        OSError: the folder cannot be written; nothing remains of it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _hidden(path)
    part.mkdir()
    try:
        yield part
        sync_tree(part)
        try:
            part.rename(path)
        except OSError as error:
            if path.exists():
                raise FileExistsError(error.errno, f"{path} exists and is not overwritten", str(path)) from error
            raise
        sync(path.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def leftovers(folder: Path) -> list[Path]:
    """The temporary entries that killed processes left in a folder, or that live ones write; not in its subfolders."""
    return list(folder.glob(f".{'?' * 2 * _RANDOM}.part*"))


def remove_leftovers(folder: Path) -> None:
    """Removes the temporary entries that killed processes left in a folder, not in its subfolders.

    Only for a process that holds the folder's lock, so that no other process is writing.
    """
    for path in leftovers(folder):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def sync_tree(root: Path) -> None:
    """Flushes ``root`` and every file and folder below it to disk."""
    for path in (*root.rglob("*"), root):
        if not path.is_symlink():
            sync(path)


def sync(path: Path) -> None:
    """Flushes one file, or one folder's entries, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _hidden(path: Path) -> Path:
    return path.with_name(f".{secrets.token_hex(_RANDOM)}.part{path.suffix}")
