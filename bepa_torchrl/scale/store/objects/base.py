"""The interface of an object store and its errors; checked by :func:`bepa_torchrl.testing.check_object_store`."""

from __future__ import annotations

import errno
import re
from typing import Protocol

CREDENTIALS = (
    "set valid credentials in the environment (S3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE; "
    "Azure: AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY)"
)
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


class StorageURLError(ValueError):
    """A storage URL cannot be used: its scheme, its form, or a package that is not installed."""


class StorageError(OSError):
    """A store could not be read or written. The message has the store, the operation, the reason and the fix."""


class ObjectStore(Protocol):
    """Bytes under keys such as ``objects/ab/abcd``; an object appears complete or not at all.

    Keys consist of parts of ``A-Z a-z 0-9 . _ -`` separated by ``/``; a part does not start with a dot. Methods may be
    called from several threads. Every method raises :class:`StorageError` if the store cannot be reached, refuses the
    operation or is full, and ValueError for an invalid key.
    """

    url: str  #: for messages

    def put(self, key: str, data: bytes) -> None:
        """Writes an object; replaces an earlier one."""

    def create(self, key: str, data: bytes) -> None:
        """Writes an object that must not exist: of several writers of one key, exactly one succeeds.

        Raises:
            FileExistsError: there is an object of this key; it is unchanged.
        """

    def get(self, key: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none of this key."""

    def list(self, prefix: str = "") -> list[str]:
        """The keys below the folder ``prefix``, sorted; all keys for an empty prefix."""

    def delete(self, key: str) -> None:
        """Removes an object; does nothing if there is none of this key."""


def check_key(key: str) -> str:
    """Returns the key. Raises ValueError if it is invalid."""
    if not all(_PART.fullmatch(part) for part in key.split("/")):
        raise ValueError(f"a key has parts of A-Z a-z 0-9 . _ - separated by /, none starting with a dot; got {key!r}")
    return key


def storage_error(url: str, operation: str, error: BaseException, *, fix: str | None = None) -> StorageError:
    """The error as one sentence: the store, the operation, the reason and the fix (None: by the kind of error)."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return StorageError(f"{url}: {operation} failed: {reason}; {fix or _fix(error)}")


def _fix(error: BaseException) -> str:
    """How to fix it, by the kind of error; the packages' own classes are recognised by name, without an import."""
    text = f"{' '.join(kind.__name__ for kind in type(error).__mro__)} {error}".lower()
    number = getattr(error, "errno", None)
    if any(word in text for word in ("credential", "authentication", "invalidaccesskeyid", "signaturedoesnotmatch")):
        return CREDENTIALS
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or any(w in text for w in ("quota", "insufficientstorage")):
        return "the store is full: free some space there, or name another store"
    if (
        number in (errno.EROFS, errno.EACCES, errno.EPERM)
        or isinstance(error, PermissionError)
        or "accessdenied" in text
    ):
        return "the store is read-only or refuses this user: allow reading, writing and deleting, or name another store"
    if isinstance(error, FileNotFoundError) or "nosuchbucket" in text or "containernotfound" in text:
        return "create the bucket or container first, or correct its name"
    return "check the address and the network"
