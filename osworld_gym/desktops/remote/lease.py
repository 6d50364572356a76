"""Leases: each server is used by one desktop at a time, across all processes of this machine.

A lease is a lock (``flock``) on a file per URL. The kernel releases it when its holder ends, for whatever reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from osworld_gym.atomic import new_folder
from osworld_gym.desktops.container.owner import Owner
from osworld_gym.errors import DesktopError, FailureReason

FOLDER = Path("/tmp/osworld-gym-leases")  # the same for every user and process of this machine
POLL = 0.2  # seconds between two attempts; there is no event for the first of several locks to be released


class Lease:
    """A leased server, until :meth:`release` or the end of this process."""

    def __init__(self, url: str, descriptor: int) -> None:
        self.url, self._descriptor = url, descriptor

    def release(self) -> None:
        """Releases the lease. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def acquire(urls: Sequence[str], wait: float, folder: Path | None = None) -> Lease:
    """Leases the first free server, in the order of the list.

    Args:
        urls: the servers' URLs without tokens, since they are written to the lock files.
        wait: seconds to wait for a free server.
        folder: folder of the locks; None: :data:`FOLDER`.

    Raises:
        DesktopError: ``never_ready``: all are in use; the message states by which processes. Or the folder cannot be
            used.
    """
    folder, end = folder or FOLDER, time.monotonic() + wait
    while True:
        for url in urls:
            try:
                lease = _try(url, folder)
            except OSError as error:
                message = f"no lock of {url} in {folder}: {error}; fix: every user must be able to write there"
                raise DesktopError(FailureReason.never_ready, message) from error
            if lease is not None:
                return lease
        if time.monotonic() >= end:
            holders = ", ".join(f"{url} by {_holder(url, folder)}" for url in urls)
            message = f"no server was free within {wait:g} s ({holders}); fix: name more urls, or fewer desktops"
            raise DesktopError(FailureReason.never_ready, message)
        time.sleep(POLL)  # one lock can be awaited, but not the first of several


def _path(url: str, folder: Path) -> Path:
    return folder / hashlib.sha256(url.encode()).hexdigest()[:32]


def _try(url: str, folder: Path) -> Lease | None:
    descriptor = _open(_path(url, folder))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{Owner.this()}\n{url}\n".encode(), 0)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return Lease(url, descriptor)


def _open(path: Path) -> int:
    """Opens or creates the lock file. Lock files are never removed: a lock on a removed file has no effect."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        _create(path)
        return os.open(path, flags)


def _create(path: Path) -> None:
    """Creates the lock file, and its folder, unless another process does so.

    Both appear with the permissions for every user, without the process's umask, which is that of all its threads.
    """
    if not path.parent.is_dir():
        with suppress(FileExistsError), new_folder(path.parent) as folder:
            folder.chmod(0o1777)
    descriptor, part = tempfile.mkstemp(dir=path.parent)
    try:
        os.fchmod(descriptor, 0o666)
        with suppress(FileExistsError):
            os.link(part, path)
    finally:
        os.close(descriptor)
        Path(part).unlink()


def _holder(url: str, folder: Path) -> str:
    try:
        return f"process {Owner.parse(_path(url, folder).read_text().splitlines()[0]).pid}"
    except (OSError, ValueError, IndexError):
        return "an unknown process"
