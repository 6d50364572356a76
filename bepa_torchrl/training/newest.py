"""The newest checkpoint of a folder, by its name. Imports no torch."""

from __future__ import annotations

from pathlib import Path

PREFIX = "iteration"  #: of the checkpoints' names


def newest_checkpoint(folder: Path) -> int | None:
    """Iteration of the newest checkpoint in the folder, which is not verified; None if there is none."""
    names = [path.parent.name.removeprefix(f"{PREFIX}-") for path in folder.glob(f"{PREFIX}-*/manifest.json")]
    return max((int(name) for name in names if name.isdecimal()), default=None)
