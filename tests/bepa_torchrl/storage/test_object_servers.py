"""Object stores on real servers: S3 (moto) and Azure Blob (azurite); credentials, permissions, an absent server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from listening_ports import free_ports
from object_servers import Server, azurite_connection, azurite_server, moto_server

from bepa_torchrl.scale.store.mirror import RunStore, RunUploader, restore
from bepa_torchrl.scale.store.mirror.snapshot import CHUNK
from bepa_torchrl.scale.store.objects import StorageError, open_store
from bepa_torchrl.scale.store.objects.url import check_store
from bepa_torchrl.testing import check_object_store

pytestmark = [pytest.mark.storage, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    server = moto_server()
    server.start()
    requests.put(f"{server.address}/bucket", timeout=30).raise_for_status()
    yield server
    server.stop()


@pytest.fixture
def s3_environment(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """What a user sets."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return s3


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connection string of a server with the container ``container``."""
    from azure.storage.blob import ContainerClient

    server = azurite_server(tmp_path_factory.mktemp("azurite"))
    server.start()
    connection = azurite_connection(server)
    with ContainerClient.from_connection_string(connection, "container") as container:
        container.create_container()
    yield connection
    server.stop()


@pytest.mark.usefixtures("s3_environment")
def test_s3_passes_the_checks() -> None:
    store = open_store("s3://bucket/some/folder")
    check_store(store)
    check_object_store(store)
    assert store.list() == []


def test_azure_blob_passes_the_checks(azure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure)
    store = open_store("abfs://container/some/folder")
    check_store(store)
    check_object_store(store)
    assert store.list() == []
    with pytest.raises(StorageError, match="create the bucket or container first, or correct its name"):
        check_store(open_store("abfs://nothing/folder"))


@pytest.mark.usefixtures("s3_environment")
def test_a_folder_is_uploaded_to_s3_and_restored(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "weights").write_bytes(os.urandom(CHUNK + 1))
    (tmp_path / "run" / "lines.jsonl").write_text("1\n")
    store = RunStore(open_store("s3://bucket/runs"), "x")
    for line in ("2\n", "3\n", "4\n"):  # with the removal of old snapshots
        uploader = RunUploader(tmp_path / "run", store, interval=0.1, note=pytest.fail)
        uploader.close(60.0)
        with (tmp_path / "run" / "lines.jsonl").open("a") as file:
            file.write(line)
    assert restore(store, tmp_path / "restored") is not None
    assert (tmp_path / "restored" / "lines.jsonl").read_text() == "1\n2\n3\n"
    assert (tmp_path / "restored" / "weights").read_bytes() == (tmp_path / "run" / "weights").read_bytes()


@pytest.mark.usefixtures("s3_environment")
def test_a_missing_bucket_is_reported_with_the_fix() -> None:
    with pytest.raises(StorageError, match=r"s3://nothing/x: creating .*; create the bucket or container first"):
        check_store(open_store("s3://nothing/x"))


@pytest.mark.parametrize("url", ["s3://bucket/x", "abfs://container/x"])
def test_missing_credentials_are_reported_with_the_variables(
    url: str, s3_environment: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert s3_environment
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))  # no ~/.aws
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    with pytest.raises(StorageError, match=r"set valid credentials in the environment \(S3: AWS_ACCESS_KEY_ID"):
        check_store(open_store(url))


def test_a_refused_write_is_reported_with_the_fix(s3_environment: Server) -> None:
    """The server checks permissions from the next request on; this key has none."""
    address = s3_environment.address
    requests.post(f"{address}/moto-api/reset-auth", data=b"0", timeout=30).raise_for_status()
    try:
        with pytest.raises(
            StorageError, match=r"; (set valid credentials|the store is read-only or refuses this user)"
        ):
            check_store(open_store("s3://bucket/x"))
    finally:
        requests.post(f"{address}/moto-api/reset-auth", data=b"inf", timeout=30).raise_for_status()


def test_an_absent_server_is_reported_within_the_deadline(
    s3_environment: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert s3_environment
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_ports(1)[0]}")
    with pytest.raises(StorageError, match=r"s3://bucket/x: creating .*; check the address and the network"):
        check_store(open_store("s3://bucket/x", deadline=5.0))
