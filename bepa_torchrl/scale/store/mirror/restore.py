"""Restores a run's folder from its newest whole snapshot."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar

from bepa_torchrl.scale.store.mirror.snapshot import RunStore, Snapshot, SnapshotError, StoredFile
from bepa_torchrl.scale.store.mirror.sync_state import SyncState
from bepa_torchrl.scale.store.objects.base import StorageError
from osworld_gym.atomic import new_folder

Result = TypeVar("Result")
_READERS, _ATTEMPTS = 4, 5


def restore(store: RunStore, folder: Path) -> tuple[Snapshot, list[str]] | None:
    """Writes the newest whole snapshot to ``folder``, which must not exist; it appears complete or not at all.

    Returns:
        the snapshot, and one line for each newer one that is damaged; None if the store has no snapshot of the run.

    Raises:
        SnapshotError: every snapshot is damaged.
        StorageError: the store cannot be read.
        OSError: the folder exists or cannot be written.
    """
    notes: list[str] = []
    numbers = retried(store.numbers)
    for number in numbers:
        try:
            snapshot = retried(lambda number=number: store.read(number))  # type: ignore[misc]
            with new_folder(folder) as part:
                _write(store, snapshot, part)
                restored = None if number == numbers[0] else number
                SyncState(store.url, secrets.token_hex(8), numbers[0], restored).write(part)
        except (SnapshotError, FileNotFoundError) as error:
            notes.append(f"snapshot {number} cannot be used ({error}); using the one before it")
            continue
        return snapshot, notes
    if notes:
        raise SnapshotError(f"no snapshot of {store.url} can be used: {'; '.join(notes)}")
    return None


def _write(store: RunStore, snapshot: Snapshot, folder: Path) -> None:
    def write(item: tuple[str, StoredFile]) -> None:
        name, file = item
        path = folder / _inside(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as output:
            for digest in file.chunks:
                output.write(retried(lambda digest=digest: store.get_chunk(digest)))  # type: ignore[misc]
            if output.tell() != file.size:
                raise SnapshotError(f"{name} has {output.tell()} bytes, expected {file.size}")

    with ThreadPoolExecutor(_READERS) as pool:
        for _ in pool.map(write, snapshot.files.items()):
            pass


def _inside(name: str) -> PurePosixPath:
    """The relative path. Raises SnapshotError if it leaves the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise SnapshotError(f"the path {name!r} is outside the folder")
    return path


def retried(action: Callable[[], Result]) -> Result:
    """The action's result; repeated a few times while the store fails."""
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except StorageError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(0.2 * 2**attempt)  # a store has no event for being back
    raise AssertionError("unreachable")
