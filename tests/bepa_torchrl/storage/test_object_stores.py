"""Object stores in a folder and in memory: the public checks, and one-line errors for URLs that cannot be used."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

import pytest
from small_disk import small_disk

from bepa_torchrl.scale.store.objects import StorageError, StorageURLError, open_store
from bepa_torchrl.scale.store.objects.local import LocalStore
from bepa_torchrl.scale.store.objects.url import check_store
from bepa_torchrl.testing import check_object_store


def test_a_folder_and_the_memory_pass_the_checks(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a"), f"file://{tmp_path}/b", f"memory://{secrets.token_hex(4)}/c"):
        store = open_store(url)
        check_store(store)
        check_object_store(store)
        assert store.list() == []


def test_folders_without_hard_links_pass_the_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    check_object_store(open_store(str(tmp_path)))


def test_without_hard_links_a_full_disk_leaves_no_part_of_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of a snapshot's marker would be a damaged snapshot, of a run that goes on elsewhere."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    store, sync = open_store(str(tmp_path)), os.fsync

    def full(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).name == "key":
            os.ftruncate(handle, 3)
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr("os.link", refuse)
    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        with pytest.raises(StorageError, match=r"creating key failed: .*; the store is full"):
            store.create("key", b"content")
    assert store.list() == []
    store.create("key", b"content")
    assert store.get("key") == b"content"


class Overwriting(LocalStore):
    """A store whose create overwrites."""

    def create(self, key: str, data: bytes) -> None:
        self.put(key, data)


class Truncating(LocalStore):
    """A store that loses the end of large objects."""

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data[: 1 << 20])


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Overwriting, "8 of 8 simultaneous creators"), (Truncating, "8388608 bytes were put, 1048576")],
)
def test_the_checks_find_faults(kind: type[LocalStore], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check_object_store(kind(tmp_path))


def test_a_store_without_exclusive_creation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="created an object that exists; use a store with exclusive creation"):
        check_store(Overwriting(tmp_path))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("abf://c/x", r"unknown scheme 'abf' \(did you mean 'abfs'\?\); give a folder, s3://BUCKET"),
        ("s3:/bucket", r"expected // after the scheme; write s3://BUCKET/FOLDER, or \./s3:\.\.\. for a folder"),
        ("abfs:key:secret@c/x", r"abfs:\.\.\.: expected // after the scheme"),
        ("file://", "expected a path, got none; give a folder"),
        ("s3://", "expected a bucket or container after s3://, got none"),
        ("s3://key:secret@bucket/x", r"s3://\.\.\. has credentials or parameters in the URL; set them in the env"),
        ("abfs://c/x?sig=secret", r"abfs://\.\.\. has credentials or parameters in the URL"),
    ],
)
def test_unusable_urls_are_one_line_with_the_fix(url: str, message: str) -> None:
    with pytest.raises(StorageURLError, match=message) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError("Install s3fs")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    with pytest.raises(
        StorageURLError, match=r"requires s3fs, not installed; fix: pip install 'osworld-gym\[storage\]'"
    ):
        open_store("s3://bucket/x")


def test_the_check_of_a_folder_leaves_it_empty(tmp_path: Path) -> None:
    check_store(open_store(str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_full_and_an_unusable_folder_are_reported_with_the_fix(tmp_path: Path) -> None:
    with small_disk(tmp_path, size=1 << 20, largest_file=1 << 16) as disk:
        store = open_store(str(disk))
        with pytest.raises(StorageError, match=r"writing big failed: .*; the store is full: free some space"):
            store.put("big", bytes(1 << 22))
        assert store.list() == []
        store.put("small", b"1")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"creating probe-\w+ failed: "):
        check_store(open_store(str(tmp_path / "file")))
    with pytest.raises(StorageError, match=r"/proc/none: creating .*; name a folder that can be made"):
        check_store(open_store("/proc/none"))
