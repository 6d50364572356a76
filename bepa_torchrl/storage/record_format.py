"""The version of a run's record, and where a screenshot of it is. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.storage.run_folders import SETTINGS

FORMAT = "bepa-record"
FORMAT_FILE = "record.json"  #: in a method's folder
OUTCOMES = "outcomes.jsonl"  #: evaluated episodes by mode, in the folder of a method or of the base policy
VERSION = 2  #: 1 had no record.json, no optimiser steps, and lines of whole episodes only


def record_version(folder: Path) -> int:
    """The version of the record in a method's folder: 1 without ``record.json``.

    Raises:
        RecordError: another format, or a newer version.
    """
    path = folder / FORMAT_FILE
    if not path.exists():
        return 1
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kind, version = data["format"], data["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RecordError(f"{path}: expected the version of a run's record ({error}); restore the file") from error
    if type(version) is not int:
        raise RecordError(f"{path}: field 'version': expected an integer, got {version!r}; restore the file")
    if kind != FORMAT or not 1 <= version <= VERSION:
        raise RecordError(
            f"{path}: expected {FORMAT} of version 1 to {VERSION}, got {kind!r} {version}; read it with the version "
            "of this package that wrote it, or a later one"
        )
    return version


def method_folders(folder: Path) -> list[Path]:
    """The folders of a run's methods.

    Raises:
        RecordError: the folder contains whole runs, each with methods of its own.
    """
    found = sorted(path.parent for path in folder.glob("*/config.yaml"))
    runs = [path for path in found if next(path.glob("*/config.yaml"), None) is not None]
    if runs:
        raise RecordError(
            f"{folder}: expected the folder of one run, got a folder of runs; name one, such as {runs[0]}"
        )
    return found


def near_run(folder: Path) -> str:
    """Where to look instead of a folder that is no run: the run of this method, or one in ``runs`` of that name."""
    if (folder / SETTINGS).is_file() and (folder.parent / SETTINGS).is_file():
        return f"this is a method of {folder.parent}; name that"
    name = folder.name if folder.parent == Path() else folder.parent.name
    there = Path("runs", name)
    return f"did you mean {there}?" if name and method_folders(there) else "see runs/"


def image_path(folder: Path, name: str) -> Path:
    """The file of the screenshot with this hash in a method's folder."""
    return folder / "images" / name[:2] / f"{name}.png"
