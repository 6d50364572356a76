"""What bodies consist of: MessagePack of plain values, arrays, and content that is named by its SHA-256."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import msgpack
import numpy as np

from bepa_torchrl.scale.wire.errors import ProtocolError

MAX_BODY = 1 << 30  #: bytes of a request or an answer that is not streamed
_LARGEST_ARRAY = 1 << 26  #: bytes
Blobs = Mapping[bytes, bytes]  #: content by its SHA-256


def content_hash(data: bytes | bytearray | memoryview) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()


def pack(fields: Mapping[str, Any]) -> bytes:
    """None, booleans, 64-bit integers, floats, text, bytes, lists and maps of them as MessagePack.

    Raises:
        TypeError, ValueError: another value.
    """
    try:
        return cast(bytes, msgpack.packb(fields, use_bin_type=True))
    except OverflowError as error:
        raise ValueError(f"expected integers of 64 bits: {error}") from error


def unpack(body: bytes) -> dict[str, Any]:
    """The inverse of :func:`pack`; nothing is evaluated. Raises ProtocolError: not such bytes."""
    try:
        fields = msgpack.unpackb(body, raw=False, strict_map_key=True, ext_hook=_no_extension)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"expected a body in MessagePack: {error or type(error).__name__}") from error
    if not isinstance(fields, dict) or not all(isinstance(key, str) for key in fields):
        raise ProtocolError(f"expected a map as the body, got {str(fields)[:200]}")
    return fields


def _no_extension(code: int, _: bytes) -> Any:
    raise ValueError(f"an extension of type {code}")


def pack_array(values: np.ndarray[Any, Any], numbers: str) -> bytes:
    """An array of one dimension as compressed bytes; prompts repeat one token per image patch, which costs nothing.

    Raises:
        TypeError: its numbers do not fit into ``numbers``, a dtype such as ``<i8``, by their type.
    """
    return zlib.compress(values.astype(numbers, casting="safe").tobytes(), 1)


def unpack_array(data: Any, numbers: str) -> np.ndarray[Any, Any]:
    """The inverse of :func:`pack_array`, writable. Raises ProtocolError: not such bytes, or more than 64 MiB."""
    if type(data) is not bytes:
        raise ProtocolError(f"expected an array as bytes, got {type(data).__name__}")
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(data, _LARGEST_ARRAY)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("it is cut, or too long")
        return np.frombuffer(plain, numbers).copy()
    except (ValueError, zlib.error) as error:
        raise ProtocolError(f"expected an array of {numbers}: {error}") from error


class BlobStore:
    """Content by its hash, for many threads; the least recently used is dropped.

    Args:
        limit: maximum size, bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self._size = limit, 0
        self._lock = threading.Lock()
        self._blobs: OrderedDict[bytes, bytes] = OrderedDict()

    def collect(self, needed: Iterable[bytes], new: Iterable[bytes]) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Stores new content; returns what is needed, by hash, and the hashes of what is missing."""
        given = {content_hash(blob): blob for blob in new}
        with self._lock:
            found = {name: given[name] if name in given else self._blobs.get(name) for name in needed}
            known = {name: blob for name, blob in found.items() if blob is not None}
            for name, blob in (known | given).items():
                self._size += len(blob) - len(self._blobs.pop(name, b""))
                self._blobs[name] = blob
            while self._size > self.limit:
                self._size -= len(self._blobs.popitem(last=False)[1])
        return known, [name for name in found if name not in known]

    def clear(self) -> None:
        """Drops everything."""
        with self._lock:
            self._blobs.clear()
            self._size = 0


class KnownBlobs:
    """The hashes that the other side has been given, for many threads; the oldest are forgotten.

    Args:
        limit: maximum number.
    """

    def __init__(self, limit: int = 1 << 16) -> None:
        self._limit, self._lock = limit, threading.Lock()
        self._names: OrderedDict[bytes, None] = OrderedDict()

    def ask(self, blobs: Blobs, ask: Callable[[list[bytes]], dict[str, Any]], where: str) -> dict[str, Any]:
        """The answer to a request; content that the other side has is not sent again.

        Args:
            blobs: the content that the request needs, by hash.
            ask: sends the request with this part of it; ``missing`` in its answer: the other side lacks some.
            where: the other side, for the error.

        Raises:
            ProtocolError: the other side does not keep what it is sent.
        """
        answer = ask(self.unknown(blobs))
        if "missing" in answer:  # it has dropped content, or was started again
            self.forget()
            answer = ask(list(blobs.values()))
            if "missing" in answer:
                raise ProtocolError(f"{where} does not keep the content that it is sent")
        self.add(blobs)
        return answer

    def unknown(self, blobs: Blobs) -> list[bytes]:
        """The content of which it is not known that the other side has it."""
        with self._lock:
            return [blob for name, blob in blobs.items() if name not in self._names]

    def add(self, names: Iterable[bytes]) -> None:
        """The other side has them now."""
        with self._lock:
            for name in names:
                self._names.pop(name, None)
                self._names[name] = None
            while len(self._names) > self._limit:
                self._names.popitem(last=False)

    def forget(self) -> None:
        """The other side may have none any more."""
        with self._lock:
            self._names.clear()
