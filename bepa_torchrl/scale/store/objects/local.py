"""LocalStore: objects as files in a folder, on a local disk or a NAS."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bepa_torchrl.scale.store.objects.base import check_key, storage_error
from osworld_gym.atomic import sync, write_bytes

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class LocalStore:
    """An :class:`~bepa_torchrl.scale.store.objects.base.ObjectStore` in a folder, which is created when needed.

    Args:
        root: the folder, absolute.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.url = root, str(root)

    def put(self, key: str, data: bytes) -> None:
        with self._errors(f"writing {key}"):
            write_bytes(self._path(key), data)

    def create(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._errors(f"creating {key}"):
            path.parent.mkdir(parents=True, exist_ok=True)  # a file in the place of a folder is no object that exists
        with self._errors(f"creating {key}", FileExistsError):
            part = path.with_name(f".{secrets.token_hex(6)}.part")
            try:
                write_bytes(part, data)
                try:
                    os.link(part, path)  # atomic, and fails if the target exists, on NFS too
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    _create_without_links(path, data)
                sync(path.parent)
            finally:
                part.unlink(missing_ok=True)

    def get(self, key: str) -> bytes:
        with self._errors(f"reading {key}", FileNotFoundError):
            return self._path(key).read_bytes()

    def list(self, prefix: str = "") -> list[str]:
        top = self.root / check_key(prefix) if prefix else self.root
        keys = []
        with self._errors(f"listing {prefix or 'everything'}", FileNotFoundError):
            for folder, _, names in os.walk(top, onerror=_raise_unless_missing):
                inside = Path(folder).relative_to(self.root)
                keys += [(inside / name).as_posix() for name in names if not name.startswith(".")]
        return sorted(keys)

    def delete(self, key: str) -> None:
        with self._errors(f"deleting {key}"):
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextmanager
    def _errors(self, operation: str, *expected: type[OSError]) -> Iterator[None]:
        """Raises StorageError for every OSError but the ``expected`` ones."""
        try:
            yield
        except expected:
            raise
        except OSError as error:
            fix = "name a folder that can be made" if isinstance(error, FileNotFoundError) else None
            raise storage_error(self.url, operation, error, fix=fix) from error


def _create_without_links(path: Path, data: bytes) -> None:
    """Creates a file where hard links are missing: exclusive, but a reader may see a part of the data for a moment."""
    with path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)  # a part of the object would be taken for it
            raise


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
