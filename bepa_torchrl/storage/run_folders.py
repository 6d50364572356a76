"""Recognises the folders of training runs by their files, so that nothing else is read into them. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

SETTINGS, COMMAND = "config.yaml", "overrides.json"  #: every run of ``bepa train`` has both
_SHARED = ("prepared", "preparing", "base")  #: of a run, beside the folders of its methods


def training_runs(folder: Path) -> list[Path]:
    """The folders of the training runs that a folder is, contains, or is a part of; sorted, empty if there are none.

    A folder of a user's within a run's is no part of it.
    """
    around = next((above for above in (*folder.parents, *folder.resolve().parents) if _has_part(above, folder)), None)
    return sorted(_at_or_below(folder)) if around is None else [around]


def _has_part(run: Path, folder: Path) -> bool:
    """Whether ``run`` is a training run, and the folder below it one that the run has written."""
    inside, outside = folder.resolve(), run.resolve()
    if outside not in inside.parents or not ((run / SETTINGS).is_file() and (run / COMMAND).is_file()):
        return False  # with ".." in its path, a folder is not within all that come before
    part = inside.relative_to(outside).parts[0]
    return part in _SHARED or (run / part / SETTINGS).is_file()


def _at_or_below(folder: Path) -> Iterator[Path]:
    for path, below, files in os.walk(folder):
        if SETTINGS in files and COMMAND in files:
            below.clear()
            yield Path(path)
