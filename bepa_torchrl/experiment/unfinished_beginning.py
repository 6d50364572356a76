"""What a process leaves that is killed while it makes the folder of a new run, before ``config.yaml``. No torch."""

from __future__ import annotations

from pathlib import Path

from bepa_torchrl.methods import METHODS
from bepa_torchrl.storage.lock import LOCK
from bepa_torchrl.storage.record_format import FORMAT_FILE
from osworld_gym.atomic import leftovers, remove_leftovers

_RUN = frozenset({LOCK, "overrides.json"})
_METHOD = frozenset({"config.yaml", FORMAT_FILE})  #: as of :meth:`bepa_torchrl.experiment.run_record.RunRecord.begin`


def other_entries(folder: Path) -> list[str]:
    """The names of what else is in a folder; if there is none, no run has begun in it, and nothing is lost with it."""
    others = _other_than(folder, _RUN)
    return sorted(path.name for path in others if not _is_new_method(path))


def remove_beginning(folder: Path) -> None:
    """Removes it, but for the lock. Only for a process that holds that, if there are no :func:`other_entries`."""
    for method in [path for path in folder.iterdir() if _is_new_method(path)]:
        _remove_files(method, _METHOD)
        method.rmdir()
    _remove_files(folder, _RUN - {LOCK})


def _is_new_method(path: Path) -> bool:
    """Whether it is the folder of a method that has not begun."""
    return path.name in METHODS and path.is_dir() and not path.is_symlink() and not _other_than(path, _METHOD)


def _other_than(folder: Path, names: frozenset[str]) -> list[Path]:
    left = set(leftovers(folder))
    return [
        path
        for path in folder.iterdir()
        if path.is_symlink() or not path.is_file() or not (path in left or path.name in names)
    ]


def _remove_files(folder: Path, names: frozenset[str]) -> None:
    remove_leftovers(folder)
    for name in names:
        (folder / name).unlink(missing_ok=True)
