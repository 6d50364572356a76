"""The screenshots that the pages show: their sizes, and one file for each below the pages' folder."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path, PurePath

from PIL import Image

_HASH = re.compile(r"[0-9a-f]{64}")
#: of pictures; a browser would open the file of another as a page, and run what is in it
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


def picture_in(folder: Path, name: str) -> Path:
    """The picture ``name`` of a folder. Raises ValueError if it is outside of it: a record may name any file."""
    inside = PurePath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise ValueError(f"expected the name of a picture in {folder}, got {name[:200]!r}")
    return folder / inside


class Pictures:
    """Screenshots by file; each is opened once, and linked or copied once.

    Args:
        out: the pages' folder.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self._sizes: dict[Path, tuple[int, int]] = {}
        self._names: dict[Path, str] = {}

    def size(self, path: Path) -> tuple[int, int] | None:
        """(width, height) in pixels from the file's header; None if there is no such picture (yet)."""
        if path not in self._sizes:
            if not path.is_file():  # a pipe would block
                return None
            try:
                with Image.open(path) as picture:
                    self._sizes[path] = picture.size
            except (OSError, ValueError, Image.DecompressionBombError):
                return None
        return self._sizes[path]

    def name(self, path: Path | None) -> str | None:
        """The picture's path relative to the pages, where it is put now; None if there is no picture.

        Pictures are hard links to the run's where that is possible, which takes no space, and copies otherwise.
        """
        if path is None or self.size(path) is None:
            return None
        if path not in self._names:
            digest = path.stem if _HASH.fullmatch(path.stem) else hashlib.sha256(path.read_bytes()).hexdigest()
            suffix = path.suffix.lower()
            name = f"images/{digest[:2]}/{digest}{suffix if suffix in _SUFFIXES else _SUFFIXES[0]}"
            _put(path, self.out / name)
            self._names[path] = name
        return self._names[path]


def _put(path: Path, target: Path) -> None:
    """Links a file, or copies it to another file system."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
