"""Where this package keeps things on a machine: one home, named by ``OSWORLD_GYM_HOME`` or by platformdirs."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


def data_folder(*parts: str) -> Path:
    """What took work to make and is kept: templates, the official evaluators. Not made here."""
    home = os.environ.get("OSWORLD_GYM_HOME")
    return (Path(home).expanduser() if home else user_data_path("osworld-gym")).joinpath(*parts)


def cache_folder(*parts: str) -> Path:
    """What can be fetched again: the tasks' files. Not made here."""
    home = os.environ.get("OSWORLD_GYM_HOME")
    return (Path(home).expanduser() / "cache" if home else user_cache_path("osworld-gym")).joinpath(*parts)


def osworld_root() -> Path | None:
    """A user's OSWorld checkout, from ``OSWORLD_ROOT``; None when it is not set."""
    root = os.environ.get("OSWORLD_ROOT")
    return Path(root).expanduser() if root else None
