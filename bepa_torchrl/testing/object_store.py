"""Checks that a store implements :class:`bepa_torchrl.scale.store.objects.ObjectStore`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from bepa_torchrl.scale.store.objects import ObjectStore

_LARGE = 8 << 20


def check_object_store(store: ObjectStore, *, writers: int = 8) -> None:
    """Checks what snapshots of runs rely on. Writes below ``check-<random>/``, and removes it.

    Args:
        store: the store, which may have other objects.
        writers: simultaneous creators of one key.

    Raises:
        AssertionError: a check failed; the message states what was expected and what was found.
        StorageError: the store failed.
    """
    top = f"check-{secrets.token_hex(6)}"
    try:
        _check_values(store, top)
        _check_create(store, f"{top}/created", writers)
        _check_list(store, top)
        _check_missing(store, top)
        _check_keys(store)
    finally:
        for key in store.list(top):
            store.delete(key)
    assert store.list(top) == [], "objects are listed after they were deleted"


def _check_values(store: ObjectStore, top: str) -> None:
    every_byte = bytes(range(256))
    for name, data in (("empty", b""), ("bytes", every_byte), ("large", every_byte * (_LARGE // 256))):
        store.put(f"{top}/values/{name}", data)
        returned = store.get(f"{top}/values/{name}")
        assert returned == data, f"{len(data)} bytes were put, {len(returned)} other bytes returned"
    store.put(f"{top}/values/bytes", b"new")
    assert store.get(f"{top}/values/bytes") == b"new", "put should replace an earlier object"


def _check_create(store: ObjectStore, key: str, writers: int) -> None:
    def write(number: int) -> int | None:
        try:
            store.create(key, b"writer %d" % number)
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(writers) as pool:
        winners = [number for number in pool.map(write, range(writers)) if number is not None]
    assert len(winners) == 1, f"{len(winners)} of {writers} simultaneous creators of one key succeeded, expected 1"
    assert store.get(key) == b"writer %d" % winners[0], "a refused creator changed the object"
    assert write(writers) is None, "create succeeded although the object exists; expected FileExistsError"
    store.delete(key)
    store.create(key, b"again")


def _check_list(store: ObjectStore, top: str) -> None:
    expected = [f"{top}/{name}" for name in ("created", "values/bytes", "values/empty", "values/large")]
    assert store.list(top) == expected, f"list({top!r}) returned {store.list(top)}, expected {expected}"
    assert store.list(f"{top}/values") == expected[1:], "list should return the keys below a folder"
    assert set(expected) <= set(store.list()), "list() should return every key"
    assert store.list(f"{top}/val") == [], "list takes a folder, not the beginning of a name"


def _check_missing(store: ObjectStore, top: str) -> None:
    assert store.list(f"{top}/nothing") == [], "list of a folder that is not there should be empty"
    _expect(FileNotFoundError, lambda: store.get(f"{top}/nothing"), "get of a missing key")
    store.delete(f"{top}/nothing")


def _check_keys(store: ObjectStore) -> None:
    for key in ("../outside", "/absolute", "a//b", "", ".hidden", "a/.hidden"):
        _expect(ValueError, lambda key=key: store.put(key, b""), f"put of the key {key!r}")  # type: ignore[misc]


def _expect(kind: type[Exception], action: Callable[[], object], what: str) -> None:
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{what} succeeded, expected {kind.__name__}")
