"""Endpoints of files: read, upload, list a folder, download from the network. Only regular files, up to a size limit.

A path may name anything that the desktop's user may read or write, as in OSWorld, within the sandbox's file system.
Whatever could hang the server or fill its memory is refused: devices, pipes, sockets, files above the limit.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..process.commands import Commands, is_desktops
from ..server.answers import NO_RESULT, Answer, BadRequest, Table, as_json, as_text, path_of, seconds_of, text_of

FILE_LIMIT = 512 << 20  # largest file in bytes
ENTRIES = 100_000  # most files and folders in one listing
DEPTH = 64  # deepest nesting of folders in one listing
DOWNLOAD_TIMEOUT = 300.0  # seconds, as in OSWorld's server
DOWNLOAD_TRIES = 3  # the same
CHUNK = 1 << 20  # bytes


class FileRefused(OSError):
    """The path is not a regular file, or is larger than the limit."""


class Files:
    """``/file``, ``/setup/upload``, ``/list_directory``, ``/desktop_path``, ``/setup/download_file``."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def routes(self) -> Table:
        return {
            ("POST", "/file"): self.file,
            ("POST", "/setup/upload"): self.upload,
            ("POST", "/list_directory"): self.list_directory,
            ("POST", "/desktop_path"): lambda _: self.desktop_path(),
            ("POST", "/setup/download_file"): self.download_file,
        }

    def file(self, form: Mapping[str, Any]) -> Answer:
        path = self._commands.expand(path_of(form, "file_path"))
        try:
            data = read_regular(path)
        except FileRefused as error:
            return as_json({"error": str(error)}, 403)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return as_json({"error": "File not found"}, 404)
        except OSError as error:
            return as_json({"error": f"Failed to serve file: {path}: {error.strerror}"}, 500)
        name = "".join(char for char in path.name if " " <= char <= "~" and char not in '"\\')
        return Answer(data, 200, "application/octet-stream", {"Content-Disposition": f'attachment; filename="{name}"'})

    def upload(self, form: Mapping[str, Any]) -> Answer:
        """Writes ``file_data`` to ``file_path`` atomically and creates its parent folders."""
        path, data = self._commands.expand(path_of(form, "file_path")), form.get("file_data")
        if not isinstance(data, bytes):
            raise BadRequest(f"'file_data': expected a file in a multipart form, got {type(data).__name__}")
        try:
            write_whole(path, data)
        except OSError as error:
            status = NO_RESULT if is_desktops(error) else 500
            return as_json({"error": f"Failed to upload file: {path}: {error.strerror or error}"}, status)
        return as_text(f"File Uploaded: {len(data)} bytes")

    def list_directory(self, body: Mapping[str, Any]) -> Answer:
        path = self._commands.expand(path_of(body, "path"))
        if not path.is_dir():
            return as_json({"error": "The provided path is not a directory"}, 400)
        return as_json({"directory_tree": _tree(path, [ENTRIES], DEPTH)})

    def desktop_path(self) -> Answer:
        path = self._commands.home / "Desktop"
        if not path.is_dir():
            return as_json({"error": "Unsupported operating system or desktop path not found"}, 404)
        return as_json({"desktop_path": str(path)})

    def download_file(self, body: Mapping[str, Any]) -> Answer:
        """Downloads an http(s) ``url`` to ``path``; replies with status 500 if the desktop has no network."""
        url, path = text_of(body, "url"), self._commands.expand(path_of(body, "path"))
        timeout = seconds_of(body, "timeout", DOWNLOAD_TIMEOUT)
        if not url.startswith(("http://", "https://")):
            raise BadRequest(f"'url': expected http:// or https://, got {url!r}")
        import urllib.error  # not for every desktop: takes a tenth of the guest's imports
        import urllib.request

        problem: Exception | None = None
        for _ in range(DOWNLOAD_TRIES):
            try:
                with urllib.request.urlopen(url, timeout=timeout) as source:  # noqa: S310  # http or https, see above
                    data = _read_at_most(source, FILE_LIMIT)
                write_whole(path, data)
            except (OSError, ValueError) as error:
                problem = error
                if isinstance(error, urllib.error.HTTPError | FileRefused):
                    break
            else:
                return as_text(f"File downloaded successfully: {len(data)} bytes")
        return as_text(f"Failed to download {url}. No retries left. Error: {problem}", 500)


def read_regular(path: Path) -> bytes:
    """The bytes of a regular file, symbolic links followed.

    Raises:
        FileRefused: it is a device, pipe or socket, or larger than the limit.
        OSError: it cannot be read.
    """
    # without O_NONBLOCK, opening a pipe without a writer would block this thread forever
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(str(path))
        if not stat.S_ISREG(status.st_mode):
            raise FileRefused(f"expected a regular file, got {path}")
        return _read_at_most(file, FILE_LIMIT)


def _read_at_most(source: Any, limit: int) -> bytes:
    parts, size = [], 0
    while part := source.read(CHUNK):
        size += len(part)
        if size > limit:
            raise FileRefused(f"expected a file of at most {limit} bytes, got a larger one")
        parts.append(part)
    return b"".join(parts)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically. An existing link or pipe of that name is replaced, not followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".osworld-{os.urandom(8).hex()}")
    try:
        with open(part, "xb") as file:
            file.write(data)
        if path.is_file() and not path.is_symlink():
            part.chmod(stat.S_IMODE(path.stat().st_mode))
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _tree(path: Path, left: list[int], depth: int) -> dict[str, Any]:
    """A folder in the format of OSWorld's server. Links to folders, and folders beyond ``depth``, are not entered.

    ``left`` is a list of one number: how many more entries may be listed.
    """
    children: list[dict[str, Any]] = []
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        return {"error": str(error)}
    for entry in entries:
        if left[0] <= 0:
            break
        left[0] -= 1
        name = entry.name.encode("utf-8", "replace").decode()
        if entry.is_dir(follow_symlinks=False) and depth:
            children.append(_tree(Path(entry.path), left, depth - 1))
        else:  # DirEntry.is_dir() raises for a link to itself, os.path.isdir() does not
            children.append({"type": "directory" if os.path.isdir(entry.path) else "file", "name": name})
    return {"type": "directory", "name": path.name, "children": children}
