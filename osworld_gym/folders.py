"""Folders for the package's data and cache: below ``OSWORLD_GYM_HOME`` if set, else platformdirs' user folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

_HOME = "OSWORLD_GYM_HOME"


def data_folder(*parts: str) -> Path:
    """Folder for generated data: templates, the official evaluators. Does not create it.

    Raises:
        ValueError: there is neither ``OSWORLD_GYM_HOME`` nor a home folder, as of a container's user without a name.
    """
    home = os.environ.get(_HOME)
    return (expanded(home) if home else _user_folder(user_data_path)).joinpath(*parts)


def cache_folder(*parts: str) -> Path:
    """Folder for downloads: the tasks' files. Does not create it. Raises as :func:`data_folder`."""
    home = os.environ.get(_HOME)
    return (expanded(home) / "cache" if home else _user_folder(user_cache_path)).joinpath(*parts)


def osworld_root() -> Path | None:
    """The user's OSWorld checkout, from ``OSWORLD_ROOT``; None if it is not set."""
    root = os.environ.get("OSWORLD_ROOT")
    return expanded(root) if root else None


def expanded(path: str | Path) -> Path:
    """The path with the home folder for ``~``. Raises ValueError: that user has none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: expected a user with a home folder after '~', found none; write the path") from error


def _user_folder(find: Callable[[str], Path]) -> Path:
    try:
        return find("osworld-gym")
    except RuntimeError as error:
        problem = "HOME is not set, and this user has no home folder"
        raise ValueError(f"{problem}; fix: export {_HOME}=FOLDER, for data and downloads") from error
