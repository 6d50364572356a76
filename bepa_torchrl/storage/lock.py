"""Allows one process per folder, by an advisory lock (``flock``) that the kernel releases when the process exits."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = ".lock"
_ATTEMPTS, _PAUSE = 100, 0.01  #: to take a lock that others look at; seconds between two


class FolderInUseError(ValueError):
    """Another process holds the folder's lock; the message has its process id."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds ``folder/.lock`` for the block; the folder must exist.

    The kernel releases the lock when the process exits for any reason, so no stale lock remains. The file is not
    removed: otherwise two processes could lock two files of the same name.

    Raises:
        FolderInUseError: another process holds it.
    """
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not _taken(handle):
            raise FolderInUseError(_in_use(folder))
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    """Takes the lock, unless a process holds it. One that only looks (:func:`check_free`) is waited for."""
    for _ in range(_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # possible beside those that look
        except BlockingIOError:
            return False
        fcntl.flock(handle, fcntl.LOCK_UN)
        time.sleep(_PAUSE)  # flock has no wait with a deadline
    return False


def check_free(folder: Path) -> None:
    """Raises FolderInUseError if another process holds the folder's lock."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderInUseError(_in_use(folder)) from None
    finally:
        os.close(handle)


def _in_use(folder: Path) -> str:
    try:
        holder = (folder / LOCK).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        holder = ""
    return (
        f"run folder {folder} is in use by process {holder or '(unknown)'}; "
        "wait for it, end it, or choose another name="
    )
