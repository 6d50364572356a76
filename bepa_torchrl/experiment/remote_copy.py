"""The copy of a run in a store (``storage=URL``): uploaded while it runs, restored when it is resumed elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.run_folder import runs_folder
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.unfinished_beginning import other_entries, remove_beginning
from bepa_torchrl.scale.store.mirror import RunStore, RunUploader, SnapshotError, restore, retried
from bepa_torchrl.scale.store.objects import StorageError, open_store
from bepa_torchrl.scale.store.objects.local import LocalStore
from bepa_torchrl.scale.store.objects.url import check_store
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.lock import LOCK, locked

if TYPE_CHECKING:
    from rich.console import Console

_INTERVAL = 10.0  #: seconds between two uploads
_AFTER_FAILURE = 30.0  #: seconds for the last upload of a run that failed or was interrupted


def check_new_in_store(config: Settings, name: str) -> None:
    """Checks, before anything is computed, that the store can be written and has no run of this name.

    Raises:
        RecordError: it has one. StorageURLError, StorageError: it cannot be used.
    """
    store = _run_store(config, name)
    if store is not None and store.numbers():
        raise RecordError(
            f"{store.url} exists and is not overwritten; give another name=, or go on with resume=true name={name}"
        )


@contextmanager
def leaving_no_folder(storage: str | None) -> Iterator[None]:
    """Removes the folder of a store, and those above it, that the block makes, if nothing is in them afterwards."""
    store = None if storage is None else open_store(storage)
    new: list[Path] = []
    if isinstance(store, LocalStore):
        new = list(takewhile(lambda folder: not folder.exists(), (store.root, *store.root.parents)))
    try:
        yield
    finally:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()


def restore_missing(config: Settings, folder: Path, note: Callable[[str], None]) -> None:
    """Restores a run that is to be resumed and is not on this machine; does nothing without ``storage=``.

    A folder in which a process was killed before it had begun its run counts as one that does not exist.

    Raises:
        RecordError: the store has no run of this name; or the folder has anything else, which is not overwritten.
        FolderInUseError: another process has locked the folder.
        SnapshotError: no snapshot in the store can be used. StorageURLError, StorageError: the store cannot be used.
    """
    if config.storage is None or (folder / "config.yaml").exists():
        return
    store = _run_store(config, folder.name)
    assert store is not None
    if not retried(store.numbers):
        raise RecordError(
            f"nothing to resume: neither {folder} nor {store.url} has a run; check name=, runs=, storage="
        )
    if folder.exists():
        _make_room(folder, store.url)
    restored = restore(store, folder)
    assert restored is not None, "the store had a snapshot, and none is removed before there is a newer one"
    snapshot, notes = restored
    for line in (*notes, f"restored {len(snapshot.files)} files from {store.url}"):
        note(line)


def _make_room(folder: Path, url: str) -> None:
    """Empties a folder in which no run has begun. Raises as :func:`restore_missing`."""
    with locked(folder):
        if others := other_entries(folder):
            raise RecordError(
                f"{folder} has {', '.join(others)[:200]}, and no config.yaml of a run; the run in {url} is not "
                "restored over that: move the folder away, or give another runs="
            )
        remove_beginning(folder)
        (folder / LOCK).unlink()  # a process that has opened it by now finds the restored run, or nothing


@contextmanager
def uploading(config: Settings, folder: Path, console: Console) -> Iterator[RunUploader | None]:
    """Uploads the run's folder during the block; at its end, waits until the store has everything.

    Raises:
        SnapshotError: another process writes this run. StorageError: the store did not take the last state in time.
    """
    store = _run_store(config, folder.name)
    if store is None:
        yield None
        return

    def note(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False, highlight=False)

    uploader = RunUploader(folder, store, interval=_INTERVAL, note=note)
    try:
        yield uploader
    except BaseException:
        _close_after_failure(uploader, min(config.storage_wait, _AFTER_FAILURE), note)
        raise
    uploader.close(config.storage_wait)
    note(f"storage  {store.url}")


def _close_after_failure(uploader: RunUploader, seconds: float, note: Callable[[str], None]) -> None:
    try:
        uploader.close(seconds)
    except (StorageError, SnapshotError) as error:
        note(f"storage: {error}")


def _run_store(config: Settings, name: str) -> RunStore | None:
    """The run's location in the store, which was written to; None without ``storage=``.

    Raises:
        ConfigError: it is in the run's folder. StorageURLError, StorageError: the store cannot be used.
    """
    if config.storage is None:
        return None
    store = open_store(config.storage)
    folder = (runs_folder(config) / name).resolve()
    if isinstance(store, LocalStore) and (store.root / name).resolve().is_relative_to(folder):
        raise ConfigError(
            f"storage={config.storage}: the copy of the run would be in its own folder, {folder}, and be copied again "
            "and again; name a folder that is not in it, nor that of runs="
        )
    check_store(store)
    return RunStore(store, name)
