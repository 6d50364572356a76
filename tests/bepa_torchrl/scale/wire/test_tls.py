"""Certificates: the right one, and each wrong one in one line that names it and the fix."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from bepa_torchrl.scale.wire import connections
from bepa_torchrl.scale.wire.access import Tls, read_ca, read_tls
from bepa_torchrl.scale.wire.client import WireClient
from bepa_torchrl.scale.wire.errors import ProtocolError
from bepa_torchrl.scale.wire.server import WireServer

Serve = Callable[..., WireServer]
Connect = Callable[..., WireClient]
NAMES = ("cluster.tls_certificate", "cluster.tls_key")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def text(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def files(folder: Path, authority: trustme.CA, *names: str, after: datetime | None = None) -> Tls:
    """A certificate for names or addresses, with its key."""
    made = authority.issue_cert(*(names or ("127.0.0.1",)), not_after=after)
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    found = read_tls(str(certificate), str(key), NAMES)
    assert found == Tls(certificate, key)
    return found


def test_requests_cross_with_tls(serve: Serve, connect: Connect, authority: trustme.CA, tmp_path: Path) -> None:
    served = serve(tls=files(tmp_path, authority))
    assert served.url == f"https://127.0.0.1:{served.address[1]}"
    one = connect(served.url, ca=text(authority))
    assert one.ask("echo", {"a": b"x" * 300_000})["fields"] == {"a": b"x" * 300_000}


@pytest.mark.parametrize(
    ("names", "days", "problem"),
    [
        (["127.0.0.1"], -1, "certificate has expired; make a new one, or correct this machine's clock"),
        (["10.0.0.1"], 1, ".*mismatch.*; connect to a name or address that it has"),
        (["other.example"], 1, ".*mismatch.*; connect to a name or address that it has"),
    ],
)
def test_a_certificate_of_another_time_or_place_is_refused(
    names: list[str], days: int, problem: str, serve: Serve, connect: Connect, authority: trustme.CA, tmp_path: Path
) -> None:
    served = serve(tls=files(tmp_path, authority, *names, after=datetime.now(UTC) + timedelta(days=days)))
    with pytest.raises(ProtocolError, match=rf"the certificate of {served.url} is refused: {problem}") as error:
        connect(served.url, ca=text(authority)).ask("echo", {})
    assert "\n" not in str(error.value)


def test_a_certificate_of_another_authority_gets_no_token(connect: Connect, authority: trustme.CA) -> None:
    """Who cannot prove to be the server sees nothing of the request."""
    made, seen = authority.issue_cert("127.0.0.1"), list[bytes]()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def impostor() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.settimeout(20.0)
                try:
                    with context.wrap_socket(connection, server_side=True) as secure:
                        seen.append(secure.recv(1 << 16))
                except OSError:
                    connection.close()

        thread = threading.Thread(target=impostor)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        for ca in (text(trustme.CA()), None):
            with pytest.raises(ProtocolError, match=rf"{url} is refused: .*certificate.*; set --tls-ca to the"):
                connect(url, ca=ca).ask("echo", {})
        thread.join(20.0)
    assert b"".join(seen) == b""


def test_no_tls_on_one_side_is_named(serve: Serve, connect: Connect, authority: trustme.CA, tmp_path: Path) -> None:
    plain, secure = serve(), serve(tls=files(tmp_path, authority))
    with pytest.raises(ProtocolError, match=r"does not speak TLS; use http:// there, or give its program a cert"):
        connect(plain.url.replace("http:", "https:"), ca=text(authority)).ask("echo", {})
    with pytest.raises(ProtocolError, match=r"speaks TLS; use https:// and --tls-ca"):
        connect(secure.url.replace("https:", "http:")).ask("echo", {})
    assert connect(secure.url, ca=text(authority)).ask("echo", {})["sizes"] == []


def test_files_that_are_no_certificate_and_key_are_named(authority: trustme.CA, tmp_path: Path) -> None:
    tls = files(tmp_path, authority)
    other = tmp_path / "other.pem"
    other.write_bytes(authority.issue_cert("127.0.0.1").private_key_pem.bytes())
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        load_pem_private_key(tls.key.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        )
    )
    noise = tmp_path / "noise.pem"
    noise.write_bytes(bytes(range(256)))
    assert read_tls(None, None, NAMES) is None
    for certificate, key, problem in (
        (tls.certificate, other, "key values mismatch"),
        (tls.certificate, locked, "the key has a password"),
        (noise, tls.key, "expected a certificate and its key"),
        (tls.key, tls.key, "expected a certificate and its key"),
    ):
        with pytest.raises(ValueError, match=f"cluster.tls_certificate=.*, cluster.tls_key=.*{problem}") as error:
            read_tls(str(certificate), str(key), NAMES)
        assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"cluster\.tls_certificate requires cluster\.tls_key, too"):
        read_tls(str(tls.certificate), None, NAMES)
    with pytest.raises(ValueError, match=r"cluster\.tls_key requires cluster\.tls_certificate, too"):
        read_tls(None, str(tls.key), NAMES)
    with pytest.raises(
        ValueError, match=r"cluster\.tls_certificate=.*nowhere: .*\(No such file or directory\); correct"
    ):
        read_tls(str(tmp_path / "nowhere"), str(tls.key), NAMES)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    assert read_ca(ca, "--tls-ca") == text(authority)
    assert read_ca(None, "--tls-ca") is None
    for wrong in (noise, tls.key, tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=r"--tls-ca=.*: expected certificates in PEM"):
            read_ca(wrong, "--tls-ca")


def test_a_server_whose_certificate_cannot_be_used_does_not_start(
    serve: Serve, authority: trustme.CA, tmp_path: Path
) -> None:
    """The files may have changed since the settings were read."""
    tls = files(tmp_path, authority)
    tls.key.write_bytes(authority.issue_cert("127.0.0.1").private_key_pem.bytes())
    with pytest.raises(ValueError, match=r"cluster\.tls_certificate=.*, cluster\.tls_key=.*key values mismatch"):
        serve(tls=tls)
    tls.certificate.unlink()
    with pytest.raises(ValueError, match=r"cluster\.tls_certificate=.*No such file or directory"):
        serve(tls=tls)


def test_who_sends_no_request_by_tls_is_disconnected(
    serve: Serve, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    served = serve(tls=files(tmp_path, authority))
    context = ssl.create_default_context(cadata=text(authority))
    with (
        socket.create_connection(served.address, 20.0) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as silent,
        suppress(ssl.SSLError, ConnectionError),  # the end without TLS's own
    ):
        assert silent.recv(1) == b""
