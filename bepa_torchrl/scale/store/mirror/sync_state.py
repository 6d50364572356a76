"""What a run's folder knows about its copy in the store: ``.storage/state.json``."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from bepa_torchrl.scale.store.mirror.snapshot import RunStore, SnapshotError
from bepa_torchrl.scale.store.mirror.staging import SPOOL
from osworld_gym.atomic import write_text

_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class SyncState:
    """The last snapshot of a folder.

    Args:
        url: the run's URL in the store.
        writer: random id of this folder, which distinguishes its snapshots from those of another machine's copy.
        number: number of the newest snapshot that this folder wrote or has seen; 0: none.
        restored: number of the snapshot that this folder was restored from, if newer ones were damaged; None: this
            folder wrote snapshot ``number``, or was restored from it.
    """

    url: str
    writer: str
    number: int
    restored: int | None = None

    @property
    def whole(self) -> int:
        """Number of the newest snapshot of which this folder has written or read every chunk; 0: none."""
        return self.number if self.restored is None else self.restored

    def write(self, folder: Path) -> None:
        """Stores the state in the run's folder."""
        write_text(folder / SPOOL / _STATE, json.dumps(asdict(self)))


def read_state(folder: Path, url: str) -> SyncState:
    """The folder's state; a new one if it has none, or one for another URL."""
    path = folder / SPOOL / _STATE
    if path.exists():
        state = SyncState(**json.loads(path.read_text(encoding="utf-8")))
        if state.url == url:
            return state
    return SyncState(url, secrets.token_hex(8), 0)


def begin(folder: Path, store: RunStore) -> SyncState:
    """The state with the number of the store's newest snapshot, which must be this folder's.

    Raises:
        SnapshotError: the run was continued on another machine.
        StorageError: the store cannot be read.
    """
    state = read_state(folder, store.url)
    newest = next(iter(store.numbers()), 0)
    if newest > state.number and store.read(newest).writer != state.writer:
        raise SnapshotError(
            f"{store.url} has snapshot {newest}, which is not from {folder}: the run was continued elsewhere; remove "
            "that folder to go on from the store, or give another name= or storage="
        )
    if newest > state.number:  # published by this folder, which was ended before it wrote its state
        state = SyncState(store.url, state.writer, newest)
    state.write(folder)
    return state
