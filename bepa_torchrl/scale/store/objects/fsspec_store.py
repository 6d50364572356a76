"""FsspecStore: objects in any fsspec file system, among them S3 and Azure Blob; every call has a deadline."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from fsspec.asyn import sync

from bepa_torchrl.scale.store.objects.base import check_key, storage_error

_ONE_AT_A_TIME = threading.Lock()  # the memory file system tests for existence and creates in two steps


class FsspecStore:
    """An :class:`~bepa_torchrl.scale.store.objects.base.ObjectStore` in an fsspec file system.

    Args:
        system: the fsspec file system, without a cache of listings.
        root: the bucket or container, and the folder in it.
        url: for messages.
        deadline: seconds for one operation.
    """

    def __init__(self, system: Any, root: str, *, url: str, deadline: float = 60.0) -> None:
        self.url = url
        self._system, self._root, self._deadline = system, root.rstrip("/"), deadline

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._errors(f"writing {key}", missing=True):
            self._call("pipe_file", path, data)

    def create(self, key: str, data: bytes) -> None:
        path = self._path(key)
        one_at_a_time = nullcontext() if self._system.async_impl else _ONE_AT_A_TIME
        with self._errors(f"creating {key}", missing=True), one_at_a_time:
            self._call("pipe_file", path, data, mode="create")

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._errors(f"reading {key}"):
            return bytes(self._call("cat_file", path))

    def list(self, prefix: str = "") -> list[str]:
        path = self._path(prefix) if prefix else self._root
        with self._errors(f"listing {prefix or 'everything'}"):
            try:
                paths = self._call("find", path)
            except FileNotFoundError:
                return []
        start = len(self._system._strip_protocol(self._root).strip("/")) + 1
        return sorted(name.strip("/")[start:] for name in paths)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors(f"deleting {key}"):
            try:
                self._call("rm_file", path)
            except FileNotFoundError:
                return

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """A method of the file system; cancelled at the deadline where the file system is asynchronous."""
        if self._system.async_impl:
            method = getattr(self._system, f"_{name}")
            return sync(self._system.loop, method, *args, timeout=self._deadline, **kwargs)
        return getattr(self._system, name)(*args, **kwargs)

    @contextmanager
    def _errors(self, operation: str, *, missing: bool = False) -> Iterator[None]:
        """Raises every error as a StorageError, except FileExistsError and, unless ``missing``, FileNotFoundError."""
        try:
            yield
        except FileExistsError:
            raise
        except FileNotFoundError as error:
            if missing:
                raise storage_error(self.url, operation, error) from error
            raise
        except Exception as error:  # the packages' own classes have no common base
            if type(error).__name__ == "ResourceNotFoundError" and not missing:
                raise FileNotFoundError(str(error)) from error
            raise storage_error(self.url, operation, error) from error
