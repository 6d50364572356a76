"""Opens the store of a URL: a path, ``file://``, ``s3://``, ``abfs://``, ``memory://``, or another fsspec scheme."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.scale.store.objects.base import (
    CREDENTIALS,
    ObjectStore,
    StorageError,
    StorageURLError,
    storage_error,
)
from bepa_torchrl.scale.store.objects.local import LocalStore
from osworld_gym.errors import did_you_mean

_EXTRA = {"s3": "s3fs", "s3a": "s3fs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
_COMMON = ("file", "s3", "abfs", "memory", "gs")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)  #: at the beginning of a URL
_FIX = "give a folder, s3://BUCKET/FOLDER or abfs://CONTAINER/FOLDER"
#: file systems that retry by themselves for longer than an operation's deadline unless told otherwise
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 1}}},
}


def open_store(url: str, *, deadline: float = 60.0, options: Mapping[str, Any] | None = None) -> ObjectStore:
    """The store of a URL. Nothing is read or written yet.

    Args:
        url: a folder or an fsspec URL without credentials, which are taken from the environment.
        deadline: seconds for one operation.
        options: further keyword arguments of the fsspec file system.

    Raises:
        StorageURLError: an unknown scheme, one without ``//``, a package that is not installed, credentials in the URL,
            no bucket.
        StorageError: the file system cannot be set up, for example without credentials.
    """
    if "://" not in url and (wrong := _SCHEME.match(url)):
        scheme = wrong[0]  # what follows may have credentials
        raise StorageURLError(
            f"storage={scheme}...: expected // after the scheme; write {scheme}//BUCKET/FOLDER, or ./{scheme}... for a "
            "folder whose name begins so"
        )
    scheme, _, rest = url.partition("://") if "://" in url else ("file", "", url)
    if scheme in ("file", "local"):
        if not rest:
            raise StorageURLError(f"storage={url!r}: expected a path, got none; {_FIX}")
        return LocalStore(Path(rest).expanduser().absolute())
    _check_parts(url, rest)
    if not rest.strip("/") and scheme != "memory":
        raise StorageURLError(f"storage={url}: expected a bucket or container after {scheme}://, got none; {_FIX}")
    import fsspec

    from bepa_torchrl.scale.store.objects.fsspec_store import FsspecStore

    kind = _file_system(url, scheme)
    try:
        arguments = _OPTIONS.get(scheme, {}) | kind._get_kwargs_from_urls(url) | dict(options or {})
        system = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **arguments)
    except Exception as error:  # the packages raise ValueError, KeyError and classes of their own
        fix = CREDENTIALS if isinstance(error, ValueError | KeyError) else None  # so they report missing credentials
        raise storage_error(url, "opening", error, fix=fix) from error
    return FsspecStore(system, kind._strip_protocol(url), url=url, deadline=deadline)


def check_store(store: ObjectStore) -> None:
    """Writes, reads and removes a small object.

    Raises:
        StorageError: the store cannot be reached, is full or read-only, or does not refuse to create an object twice.
    """
    key = f"probe-{secrets.token_hex(8)}"  # in no folder, which a store on a disk would keep
    store.create(key, b"probe")
    try:
        try:
            store.create(key, b"again")
        except FileExistsError:
            pass
        else:
            raise StorageError(f"{store.url}: created an object that exists; use a store with exclusive creation")
        if store.get(key) != b"probe":
            raise StorageError(f"{store.url}: an object was read back with other content; name another store")
    finally:
        store.delete(key)


def _check_parts(url: str, rest: str) -> None:
    """Raises StorageURLError for a URL with credentials, which run records would store."""
    host, _, _ = rest.partition("/")
    user, at, _ = host.rpartition("@")
    if (at and ":" in user) or "?" in rest:
        hidden = f"{url.partition('://')[0]}://..."
        raise StorageURLError(
            f"storage={hidden} has credentials or parameters in the URL; "
            "set them in the environment (docs/storage.md) and give the URL without them"
        )


def _file_system(url: str, scheme: str) -> Any:
    """The class of the scheme's file system."""
    import fsspec

    known = fsspec.available_protocols()
    if scheme not in known:
        raise StorageURLError(f"storage={url}: unknown scheme {scheme!r}{did_you_mean(scheme, _COMMON)}; {_FIX}")
    try:
        return fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        if scheme in _EXTRA:
            text = f"requires {_EXTRA[scheme]}, not installed; fix: pip install 'osworld-gym[storage]'"
        else:
            text = f"requires a package that is not installed ({error}); {_FIX}"
        raise StorageURLError(f"storage={url} {text}") from error
