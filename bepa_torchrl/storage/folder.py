"""Atomic folders: files and a manifest with their checksums, written to the side and renamed at the end.

    manifest.json    {"format", "version", "meta": …, "files": {relative path: sha256}}, and the manifest's own sha256
    everything else  as its format defines

A save goes to a hidden folder next to the target, which is flushed to disk (fsync) and renamed to the target. If
anything fails before that, the old folder is unchanged. A load verifies every file it reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osworld_gym.atomic import sync, sync_tree

MANIFEST = "manifest.json"


class FolderError(ValueError):
    """A saved folder is missing, damaged, of another format or version, or could not be written."""


class FolderWriter:
    """Writes the files of one folder; passed to the callback of :func:`write_folder`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.files: dict[str, str] = {}

    def add(self, name: str, data: bytes) -> None:
        """Writes one file; ``name`` is relative, with ``/``, and does not leave the folder.

        Raises:
            ValueError: an invalid name.
            OSError: writing failed.
        """
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"a file's name is relative and inside the folder; got {name!r}")
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.files[name] = hashlib.sha256(data).hexdigest()

    def add_blob(self, folder: str, data: bytes) -> str:
        """Writes bytes to a file named by their sha256, only once per content; returns the name."""
        suffix = ".png" if data.startswith(b"\x89PNG\r\n\x1a\n") else ".bin"
        name = f"{folder}/{hashlib.sha256(data).hexdigest()}{suffix}"
        if name not in self.files:
            self.add(name, data)
        return name


class FolderReader:
    """The files of one folder, verified against the manifest; returned by :func:`read_folder`."""

    def __init__(self, root: Path, meta: Any, files: dict[str, str]) -> None:
        self._root, self.meta, self._files = root, meta, files

    def has(self, name: str) -> bool:
        """Whether the manifest has a file of this name."""
        return name in self._files

    def get(self, name: str) -> bytes:
        """One file's bytes.

        Raises:
            FolderError: the file is not in the manifest, not on disk, or changed.
        """
        if name not in self._files:
            raise FolderError(f"{self._root}: {name!r} is not in its manifest; {_RESTORE}")
        try:
            data = (self._root / name).read_bytes()
        except OSError as error:
            raise FolderError(f"{self._root}: {name!r} cannot be read ({error}); {_RESTORE}") from error
        if hashlib.sha256(data).hexdigest() != self._files[name]:
            raise FolderError(f"{self._root}: {name!r} is damaged or was changed; {_RESTORE}")
        return data


_RESTORE = "restore the folder from a copy, or save it again"


def write_folder(
    path: str | Path, *, format: str, version: int, meta: Any, fill: Callable[[FolderWriter], None]
) -> None:
    """Writes a folder atomically; replaces an earlier one of the same format, or an empty folder.

    Args:
        path: the folder; missing parents are created.
        format: name of the format.
        version: version of the format.
        meta: JSON-compatible, stored in the manifest.
        fill: callback that adds the files.

    Raises:
        FolderError: ``path`` is something else, or writing failed (disk full, read-only); ``path`` is unchanged.
    """
    path = Path(path).absolute()
    if path.exists() and not (path.is_dir() and (_is_empty(path) or _format_of(path) == format)):
        raise FolderError(f"{path} is not a folder of format {format!r}: not overwritten; name another path")
    staged = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{path.name}.new-", dir=path.parent))
        staged.chmod(0o755)
        writer = FolderWriter(staged)
        fill(writer)
        body = {"format": format, "version": version, "meta": meta, "files": writer.files}
        text = json.dumps(body)
        manifest = {"manifest": body, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        (staged / MANIFEST).write_bytes(json.dumps(manifest).encode())
        sync_tree(staged)
        _swap(staged, path)
    except OSError as error:
        raise FolderError(
            f"{path} could not be saved ({error.strerror or error}); what was there is unchanged; "
            "free some space or name another path"
        ) from error
    finally:
        if staged is not None:
            shutil.rmtree(staged, ignore_errors=True)


def read_folder(path: str | Path, *, format: str, version: int) -> FolderReader:
    """Opens a folder of the given format and version.

    Raises:
        FolderError: missing, damaged, or of another format or version.
    """
    path = Path(path).absolute()
    if (not path.exists() or _is_empty(path)) and _aside(path).exists():
        path = _aside(path)  # a save was killed between its two renames
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        body = manifest["manifest"]
        whole = hashlib.sha256(json.dumps(body).encode()).hexdigest() == manifest["sha256"]
    except FileNotFoundError as error:
        raise FolderError(f"{path} has no {MANIFEST}: not a saved folder, or damaged; {_RESTORE}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderError(f"{path / MANIFEST} cannot be read ({error}); {_RESTORE}") from error
    if not whole:
        raise FolderError(f"{path / MANIFEST} is damaged or was changed; {_RESTORE}")
    if body["format"] != format:
        raise FolderError(f"{path} holds {body['format']!r}, expected {format!r}; name a folder of that format")
    if body["version"] != version:
        raise FolderError(
            f"{path} is {format} version {body['version']}, this program reads {version}; "
            "save it again, or use the program that wrote it"
        )
    return FolderReader(path, body["meta"], body["files"])


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def _swap(staged: Path, path: Path) -> None:
    """Puts ``staged`` at ``path``. A non-empty folder cannot be renamed over: the old one is renamed first.

    If the process is killed in between, :func:`read_folder` finds the old folder under that name. If it is killed after
    the second rename, the outdated folder remains, and is removed here at the next save.
    """
    aside = _aside(path)
    old = path.exists() and not _is_empty(path)
    if old:
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
    try:
        os.rename(staged, path)
    except OSError:
        if old:
            os.rename(aside, path)
        raise
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _format_of(folder: Path) -> str | None:
    try:
        name = json.loads((folder / MANIFEST).read_bytes())["manifest"]["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None
