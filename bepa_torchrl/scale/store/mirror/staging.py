"""Captures the state of a folder that another process is writing, without copying its data.

Files are linked into a spool folder, so that a checkpoint that is removed meanwhile can still be uploaded. The folder's
files are either replaced atomically, never changed, or only appended to; of the last kind the size at capture counts.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

SPOOL = ".storage"  #: in the run's folder; hidden files are not part of a snapshot
_APPENDED = (".jsonl", ".csv", ".txt")  #: and TensorBoard's event files
_ATTEMPTS = 20


class ChangingError(Exception):
    """The folder changed during every attempt to capture it."""


@dataclass(frozen=True, slots=True)
class FileState:
    """One file at one moment.

    Args:
        inode: changes when the file is replaced.
        size: bytes.
        modified: time of the last change, ns.
    """

    inode: int
    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class Capture:
    """The captured files.

    Args:
        root: the spool folder with a link or copy of each file of ``states`` that is not in ``known``.
        states: relative path with ``/`` to state; of a file that is appended to, read ``size`` bytes only.
    """

    root: Path
    states: dict[str, FileState]

    def discard(self) -> None:
        """Removes the links."""
        shutil.rmtree(self.root, ignore_errors=True)


def is_appended(path: str) -> bool:
    """Whether a file of this name is only appended to, or replaced."""
    return path.endswith(_APPENDED) or "events.out.tfevents." in path


def capture(folder: Path, known: dict[str, FileState]) -> Capture:
    """Captures one consistent state of the folder.

    Args:
        folder: the run's folder.
        known: files that need no link, since a file of this path and state was uploaded.

    Raises:
        ChangingError: files were replaced or removed during every attempt; try again later.
        OSError: the folder cannot be read, or the disk is full.
    """
    root = folder / SPOOL / "links"
    for _ in range(_ATTEMPTS):
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        try:
            states = _states(folder)
            _link_unknown(folder, root, states, known)
            # sizes of records are taken last, so that a record is never older than the checkpoint next to it
            later = _states(folder)
            if _steady(states, later):
                _link_unknown(folder, root, later, known)
                return Capture(root, later)
        except FileNotFoundError:
            continue
    shutil.rmtree(root, ignore_errors=True)
    raise ChangingError(f"{folder} changed during {_ATTEMPTS} attempts to capture it")


def _link_unknown(folder: Path, root: Path, states: dict[str, FileState], known: dict[str, FileState]) -> None:
    for path, state in states.items():
        if known.get(path) != state and not (root / path).exists():
            _link(folder / path, root / path)


def _states(folder: Path) -> dict[str, FileState]:
    """The files of a folder, without hidden ones, symbolic links and special files."""
    states: dict[str, FileState] = {}
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        with os.scandir(folder / inside) as entries:
            for entry in entries:
                path = f"{inside}{entry.name}"
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{path}/")
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    states[path] = FileState(status.st_ino, status.st_size, status.st_mtime_ns)
    return states


def _steady(before: dict[str, FileState], after: dict[str, FileState]) -> bool:
    """Whether nothing happened in between but growth of files that are appended to."""
    if before.keys() != after.keys():
        return False
    return all(
        state == after[path]
        or (is_appended(path) and state.inode == after[path].inode and state.size <= after[path].size)
        for path, state in before.items()
    )


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)
