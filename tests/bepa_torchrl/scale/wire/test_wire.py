"""Who may connect, and that nothing is changed, cut, too long or without end."""

from __future__ import annotations

import asyncio
import errno
import http.client
import io
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import uvicorn
from cut_relay import CutRelay
from polling import until

from bepa_torchrl.scale.wire import access, client, connections, server
from bepa_torchrl.scale.wire.access import (
    VERSION,
    VERSION_HEADER,
    check_url,
    check_version,
    parse_address,
    plain_warning,
    read_token,
)
from bepa_torchrl.scale.wire.client import WireClient
from bepa_torchrl.scale.wire.content import BlobStore, KnownBlobs, content_hash, pack
from bepa_torchrl.scale.wire.errors import BrokenConnectionError, ProtocolError, Refusal, RunEndedError
from bepa_torchrl.scale.wire.server import Call, WireServer
from osworld_gym import __version__

TOKEN = b"a token of this test"
Serve = Callable[..., WireServer]
Connect = Callable[..., WireClient]


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A program that sends each client these bytes, then nothing, and the URL; what it received."""
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            for answer in answers:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(20.0)
                    received.append(connection.recv(1 << 16))
                    connection.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30.0)


def answer(body: bytes, length: int | None = None, version: str = VERSION) -> bytes:
    size = len(body) if length is None else length
    return f"HTTP/1.1 200 OK\r\n{VERSION_HEADER}: {version}\r\ncontent-length: {size}\r\n\r\n".encode() + body


def raw(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    """Status and error of a request without the client."""
    given = {"Authorization": f"Bearer {TOKEN.decode()}", VERSION_HEADER: VERSION} | headers
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request(method, path, body, given)
        found = connection.getresponse()
        return found.status, found.read().decode(errors="replace")


def blobs(*contents: bytes) -> dict[bytes, bytes]:
    return {content_hash(content): content for content in contents}


# --- who may connect --------------------------------------------------------------------------------------------------


def test_another_token_is_refused_on_both_sides(serve: Serve, connect: Connect) -> None:
    notes: list[str] = []
    served = serve(note=notes.append)
    for token in (b"another token of it", TOKEN + b"x", TOKEN[:-1]):
        with pytest.raises(ProtocolError, match="another token than the server's; give both sides the same"):
            connect(served.url, token=token).ask("echo", {})
    assert all(note.endswith("is refused: a wrong token") for note in notes)
    for given in ("", "Bearer", "Bearer ", "Basic abc"):
        assert raw(served.address[1], "POST", "/echo", pack({}), Authorization=given)[0] == 401
    assert raw(served.address[1], "GET", f"/blob/{'0' * 64}", Authorization="")[0] == 401
    assert raw(served.address[1], "PUT", f"/blob/{'0' * 64}", Authorization="")[0] == 401
    with pytest.raises(ValueError, match="expected a token"):
        serve(token=b"")


@pytest.mark.parametrize(
    ("theirs", "shown"),
    [
        (f"{access.SCHEMA + 1}/{__version__}", f"schema {access.SCHEMA + 1} and version {__version__}"),
        (f"{access.SCHEMA}/1.10.0", f"schema {access.SCHEMA} and version 1.10.0"),
        ("4", "schema 4 and version unknown"),
        ("5/\x1b[31m\n", r"schema 5 and version \x1b[31m\n"),
    ],
)
def test_another_version_is_named_with_ours_in_one_line(theirs: str, shown: str) -> None:
    expected = f"expected schema {access.SCHEMA} and version {__version__}, it has {shown}; install the same version"
    with pytest.raises(ProtocolError) as error:
        check_version(theirs, "it")
    assert str(error.value).startswith(expected)
    assert "\n" not in str(error.value)


def test_another_version_is_refused_on_both_sides(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    served = serve(note=notes.append)
    with monkeypatch.context() as patch:
        patch.setattr(client, "VERSION", "4/0.0.1")
        old = connect(served.url)
    with pytest.raises(ProtocolError, match=rf"expected schema {access.SCHEMA} .* has schema 4 and version 0\.0\.1"):
        old.ask("echo", {})
    assert "has schema 4 and version 0.0.1; install the same version" in notes[0]
    with answering(answer(pack({}), version="4/0.0.1")) as (url, _), pytest.raises(ProtocolError, match="has schema 4"):
        connect(url).ask("echo", {})


def test_another_program_and_silence_are_named(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    with answering(page) as (url, _), pytest.raises(ProtocolError, match="is no bepa program; correct the address"):
        connect(url).ask("echo", {})
    with (
        answering(b"SSH-2.0-OpenSSH_9.6\r\n", b"") as (url, _),
        pytest.raises(BrokenConnectionError, match="no answer from http"),
    ):
        connect(url).ask("echo", {})
    busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n"
    with answering(busy) as (url, _), pytest.raises(BrokenConnectionError, match="status 503"):
        connect(url).ask("echo", {})
    served = serve()
    with socket.create_connection(served.address, 10.0) as noise:
        noise.sendall(bytes(range(256)) * 4 + b"\r\n\r\n")
        assert noise.recv(100).startswith(b"HTTP/1.1 400")
    monkeypatch.setattr(client, "SILENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = monotonic()
        with pytest.raises(BrokenConnectionError, match=r"no answer from http.*timed out"):
            connect(f"http://127.0.0.1:{silent.getsockname()[1]}").ask("echo", {})
        assert monotonic() - start < 20.0
    assert connect(served.url).ask("echo", {"a": 1})["fields"] == {"a": 1}


def test_no_server_is_named(connect: Connect, serve: Serve) -> None:
    served = serve()
    with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1:\d+ .*set cluster\.listen"):
        serve(address=served.address)
    served.close()
    with pytest.raises(BrokenConnectionError, match=r"no answer from http://127\.0\.0\.1:\d+: .*refused"):
        connect(served.url).ask("echo", {})


# --- what crosses -----------------------------------------------------------------------------------------------------


def test_requests_cross_from_many_threads_and_content_once(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, sent = serve(), list[int]()
    one = connect(served.url)
    monkeypatch.setattr(client, "pack", lambda fields: sent.append(len(fields["blobs"])) or pack(fields))
    given = blobs(b"x" * 1000, b"y" * 2000, b"")
    for number in range(3):
        found = one.ask("echo", {"n": number}, given)
        assert found == {"fields": {"n": number}, "sizes": [0, 1000, 2000]}
    assert sent == [3, 0, 0]
    served.blobs.clear()  # as after a restart
    assert one.ask("echo", {}, given)["sizes"] == [0, 1000, 2000]
    assert sent == [3, 0, 0, 0, 3]
    served.blobs.limit = 1
    assert one.ask("echo", {}, given)["sizes"] == [0, 1000, 2000]
    assert one.ask("echo", {}, given)["sizes"] == [0, 1000, 2000]
    results: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: results.append(one.ask("echo", {"n": n}))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert sorted(found["fields"]["n"] for found in results) == list(range(8))


def test_a_server_that_does_not_start_is_an_error_and_leaves_no_socket(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no file descriptor left for its loop, and if it is not there in time."""
    sockets: list[socket.socket] = []
    create = socket.create_server

    def kept(*arguments: Any, **options: Any) -> socket.socket:
        sockets.append(create(*arguments, **options))
        return sockets[-1]

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def stall(http: uvicorn.Server, **_: Any) -> None:
        while not http.should_exit:
            await asyncio.sleep(0.01)

    def problem() -> str:
        found: list[str] = []

        def start() -> None:
            try:
                serve()
            except OSError as error:
                found.append(str(error))

        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join(30.0)
        assert found, "it neither starts nor fails"
        assert sockets[-1].fileno() == -1
        return found[0]

    monkeypatch.setattr(socket, "create_server", kept)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.events, "new_event_loop", refuse)
        assert re.fullmatch(r"no server at 127\.0\.0\.1:\d+ \(cluster\.listen\): Too many open files", problem())
    monkeypatch.setattr(server, "START_SECONDS", 0.2)
    monkeypatch.setattr(uvicorn.Server, "startup", stall)
    assert problem().endswith("(cluster.listen): not within 0.2 s")


def test_a_store_drops_what_was_not_used_for_longest() -> None:
    store = BlobStore(10)
    a, b, c = (content_hash(bytes([n]) * 4) for n in range(3))
    assert store.collect([a, b], [b"\0" * 4, b"\1" * 4]) == ({a: b"\0" * 4, b: b"\1" * 4}, [])
    assert store.collect([a], []) == ({a: b"\0" * 4}, [])
    assert store.collect([c], [b"\2" * 4]) == ({c: b"\2" * 4}, [])
    assert store.collect([a, b, c], []) == ({a: b"\0" * 4, c: b"\2" * 4}, [b])
    known = KnownBlobs(2)
    known.add([a, b])
    known.add([a])
    known.add([c])
    assert known.unknown({a: b"0", b: b"1", c: b"2"}) == [b"1"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/exec", pack({}), 404, "unknown request POST 'exec'; known: echo"),
        ("GET", "/echo", b"", 404, "unknown request GET 'echo'"),
        ("PUT", f"/blob/{'0' * 64}", b"x", 404, "unknown request PUT"),
        ("GET", f"/blob/{'0' * 64}", b"", 400, "no such content"),
        ("GET", "/blob/xyz", b"", 400, "ValueError"),
        ("GET", "/blob/00", b"", 400, "expected a SHA-256"),
        ("GET", f"/blob/{'0' * 64}?offset=x", b"", 400, "ValueError"),
        ("POST", "/echo", b"\xff", 400, "expected a map as the body"),
        ("POST", "/echo", b"", 400, "expected a body in MessagePack"),
        ("POST", "/echo", pack({}), 400, "KeyError: 'fields'"),
        ("POST", "/echo", pack({"fields": {}, "needs": 3, "blobs": []}), 400, "TypeError"),
        ("POST", "/echo", pack({"fields": {}, "needs": [], "blobs": [3]}), 400, "TypeError"),
        ("POST", "/watch", pack({}), 400, "KeyError: 'timeout'"),
    ],
)
def test_faulty_requests_are_refused(
    method: str, path: str, body: bytes, status: int, message: str, serve: Serve
) -> None:
    found, text = raw(serve().address[1], method, path, body)
    assert (found, message in json.loads(text)["message"]) == (status, True), text


def test_a_body_that_is_too_large_is_neither_sent_nor_read(serve: Serve, connect: Connect) -> None:
    served = serve(max_body=1000)
    one = connect(served.url, max_body=2000)
    with pytest.raises(ValueError, match="expected at most 2000 bytes in a request, got 30"):
        one.ask("echo", {"a": b"x" * 3000})
    with pytest.raises(ProtocolError, match="expected a body of at most 1000 bytes, got 15"):
        one.ask("echo", {"a": b"x" * 1500})
    assert one.ask("echo", {"a": 1})["fields"] == {"a": 1}
    assert raw(served.address[1], "POST", "/echo", b"", **{"content-length": str(1 << 40)})[0] == 413
    with closing(http.client.HTTPConnection(*served.address, timeout=30)) as connection:
        connection.putrequest("POST", "/echo")
        for name, value in (("Authorization", f"Bearer {TOKEN.decode()}"), (VERSION_HEADER, VERSION)):
            connection.putheader(name, value)
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        assert "expected a Content-Length" in connection.getresponse().read().decode()
    huge = answer(pack({"a": b"x" * 4000}))
    with answering(huge) as (url, _), pytest.raises(ProtocolError, match="expected at most 2000 bytes in an answer"):
        connect(url, max_body=2000).ask("echo", {})


def test_what_is_cut_is_an_error_and_the_next_request_works(serve: Serve, connect: Connect) -> None:
    body = pack({"a": b"x" * 5000})
    for cut in (0, 10, len(body) - 1):
        with answering(answer(body[:cut], len(body)), b"") as (url, _), pytest.raises(BrokenConnectionError):
            connect(url).ask("echo", {})
    served = serve()
    relay = CutRelay(served.address)
    one = connect(f"http://127.0.0.1:{relay.address[1]}")
    for after in (50, 400, 20_000):
        relay.cut_after = after
        with pytest.raises(BrokenConnectionError):
            one.ask("echo", {"a": b"x" * 100_000})
    relay.cut_after = None
    assert one.ask("echo", {"a": 1})["fields"] == {"a": 1}
    relay.close()


def test_sending_to_one_who_does_not_read_has_a_deadline(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(BrokenConnectionError, match="timed out"):
        connect(f"http://127.0.0.1:{silent.getsockname()[1]}").ask("echo", {"a": bytes(32 << 20)})


def test_slow_peers_have_a_deadline_on_both_sides(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
    served = serve()
    with socket.create_connection(served.address, 20.0) as slow:
        token = f"authorization: Bearer {TOKEN.decode()}"
        head = f"POST /echo HTTP/1.1\r\nhost: x\r\n{token}\r\n{VERSION_HEADER}: {VERSION}"
        slow.sendall(f"{head}\r\ncontent-length: 100\r\n\r\nabc".encode())
        found = b""
        while part := slow.recv(4096):
            found += part
        assert b"no byte of the body for 0.2 s" in found
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.0)
    with (
        answering(answer(pack({"a": b"x" * 100_000}))) as (url, _),
        pytest.raises(BrokenConnectionError, match="took longer than 0 s"),
    ):
        connect(url).ask("echo", {})


def closed_by_server(connection: socket.socket) -> bool:
    """Whether the server ends the connection, before the socket's own timeout."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /echo HTTP/1.1\r\nhost: x\r\n",  # headers that never end
        b"DELETE /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n",  # without a token, and a body never comes
    ],
)
def test_who_sends_no_request_is_disconnected(sent: bytes, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    with socket.create_connection(serve().address, 20.0) as silent:
        silent.sendall(sent)
        assert closed_by_server(silent)


def test_a_later_request_of_a_connection_has_the_same_deadline_and_an_idle_one_has_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = pack({"fields": {}, "needs": [], "blobs": []})
    token = f"authorization: Bearer {TOKEN.decode()}"
    head = f"POST /echo HTTP/1.1\r\nhost: x\r\n{token}\r\n{VERSION_HEADER}: {VERSION}\r\ncontent-length: {len(body)}"
    with socket.create_connection(serve().address, 20.0) as connection:
        for _ in range(2):
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            monkeypatch.setattr(connections, "HEADER_SECONDS", 0.1)
            connection.settimeout(0.5)
            assert not closed_by_server(connection)
            connection.settimeout(20.0)
        connection.sendall(head.encode())
        assert closed_by_server(connection)


def test_connections_without_a_request_leave_places_for_those_with_the_token(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_CONNECTIONS", 10)
    served = serve()
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(served.address, 20.0)) for _ in range(20)]
        assert all(closed_by_server(each) for each in silent[:15])
        assert connect(served.url).ask("echo", {"a": 1})["fields"] == {"a": 1}


def test_content_is_streamed_from_where_it_was_cut_and_checked(serve: Serve, connect: Connect) -> None:
    data = bytes(range(256)) * 20_000
    name = content_hash(data)
    served = serve(send={name: memoryview(data), bytes(32): memoryview(b"changed")}.get)
    relay = CutRelay(served.address, cut_after=1_500_000)
    one, into = connect(f"http://127.0.0.1:{relay.address[1]}"), bytearray()
    cuts = 0
    while len(into) < len(data):
        before = len(into)
        try:
            one.download(name, len(data), into)
        except BrokenConnectionError:
            cuts += 1
            assert len(into) > before
    assert into == data
    assert cuts >= 2
    changed = bytearray()
    with pytest.raises(BrokenConnectionError, match="was changed on its way"):
        one.download(bytes(32), 7, changed)
    assert not changed
    with pytest.raises(BrokenConnectionError, match="was changed on its way"):
        one.download(bytes(32), 5, changed)  # longer than it says
    with pytest.raises(LookupError, match="no such content any more"):
        one.download(b"\1" * 32, 7, changed)
    relay.close()


def test_content_is_uploaded_as_it_is_read(serve: Serve, connect: Connect) -> None:
    got: list[tuple[bytes, bytes]] = []

    async def receive(name: bytes, parts: AsyncIterator[bytes]) -> None:
        got.append((name, b"".join([part async for part in parts])))
        if got[-1][1].startswith(b"no"):
            raise Refusal("sync", "not these")

    one = connect(serve(receive=receive).url, errors={"sync": KeyError})
    data = bytes(range(256)) * 10_000
    one.upload(content_hash(data), len(data) - 5, io.BytesIO(data))
    assert got == [(content_hash(data), data[:-5])]
    with pytest.raises(KeyError, match="not these"):
        one.upload(content_hash(data), 3, io.BytesIO(b"not"))
    with pytest.raises((ValueError, BrokenConnectionError), match=r"shorter while it was sent|no answer"):
        one.upload(content_hash(data), 10, io.BytesIO(b"123"))


# --- long polling -----------------------------------------------------------------------------------------------------


def lose(ask: Callable[..., object], *arguments: Any) -> None:
    with suppress(BrokenConnectionError):
        ask(*arguments)


def test_a_result_whose_client_has_gone_is_taken_back(serve: Serve, connect: Connect) -> None:
    go, back = threading.Event(), list[Any]()

    def take(_: Call) -> dict[str, Any]:
        assert go.wait(30.0)
        return {"lease": 7}

    served = serve({"take": take}, waiting={"take": back.append})
    relay = CutRelay(served.address)
    asked = threading.Thread(target=lose, args=(connect(f"http://127.0.0.1:{relay.address[1]}").ask, "take", {}))
    asked.start()
    until(lambda: served._slow._work_queue.empty() and served._slow._threads, "it was not asked")
    relay.cut()
    asked.join(30.0)
    go.set()
    until(lambda: back == [{"lease": 7}], "it was not taken back")
    assert connect(served.url).ask("take", {}) == {"lease": 7}
    assert len(back) == 1
    relay.close()


def test_those_who_wait_get_the_end_at_once(serve: Serve, connect: Connect) -> None:
    notes, ends, hold = list[str](), list[str](), threading.Event()
    served = serve({"take": lambda _: {"a": hold.wait(30.0)}}, waiting={"take": lambda _: None}, note=notes.append)

    def wait(ask: Callable[[], object]) -> None:
        try:
            ask()
        except RunEndedError as error:
            ends.append(str(error))

    one, other = connect(served.url), connect(served.url)
    threads = [
        threading.Thread(target=wait, args=(ask,))
        for ask in (lambda: one.watch(15.0), lambda: other.watch(15.0), lambda: one.ask("take", {}))
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(served.peers()) == 2 and served._slow._threads, "they are not connected")
    served.close()
    for thread in threads:
        thread.join(10.0)
    hold.set()
    assert ends == ["the training has ended"] * 3
    assert sorted(note.split(" at ")[0] for note in notes) == ["a rollout cluster"] * 2


def test_a_client_that_leaves_and_one_that_is_lost_are_noted(serve: Serve, connect: Connect) -> None:
    notes: list[str] = []
    served = serve(note=notes.append)
    relay = CutRelay(served.address)
    one, other = connect(served.url), connect(f"http://127.0.0.1:{relay.address[1]}")
    lost = threading.Thread(target=lose, args=(other.watch, 15.0))
    leaves = threading.Thread(target=one.watch, args=(15.0,))
    for thread in (lost, leaves):
        thread.start()
    until(lambda: len(served.peers()) == 2, "they are not connected")
    one.leave()
    leaves.join(10.0)
    assert not leaves.is_alive()
    relay.cut()
    lost.join(10.0)
    until(lambda: not served.peers(), "they are still connected")
    text = "\n".join(notes)
    assert "is disconnected: it has left" in text
    assert "is disconnected: its connection has ended" in text
    relay.close()


def test_a_client_that_does_not_come_back_is_noted(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.3)
    notes: list[str] = []
    served = serve(note=notes.append)
    connect(served.url).watch(0.0)
    assert len(served.peers()) == 1
    until(lambda: not served.peers(), "it is still connected")
    assert notes[-1].endswith("is disconnected: no request for 0.3 s")


# --- tokens and addresses ---------------------------------------------------------------------------------------------


def test_the_token_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" 0123456789abcdef\n")
    assert read_token(path, {}) == b"0123456789abcdef"
    assert read_token(None, {"BEPA_CHANNEL_TOKEN": "0123456789abcdef"}) == b"0123456789abcdef"
    path.write_text("short")
    for source, environment in ((path, {}), (None, {"BEPA_CHANNEL_TOKEN": "short"})):
        with pytest.raises(ValueError, match="of at least 16 bytes, got 5; make one by `openssl"):
            read_token(source, environment)
    for text in ("0123456789abcdef\n0123456789abcdef", "0123456789abcdéf", "0123456789\0abcdef"):
        path.write_text(text)
        with pytest.raises(ValueError, match="of printable ASCII characters in one line"):
            read_token(path, {})
    with pytest.raises(ValueError, match="or in BEPA_CHANNEL_TOKEN; BEPA_CHANNEL_TOKEN has none"):
        read_token(None, {})
    for path, problem in ((tmp_path / "none", "No such file or directory"), (tmp_path, "Is a directory")):
        with pytest.raises(ValueError, match=rf"{path}: expected a file with a token, .*\({problem}\); make one by"):
            read_token(path, {})


def test_addresses_and_urls() -> None:
    assert parse_address("10.0.0.1:7300") == ("10.0.0.1", 7300)
    assert parse_address("[::1]:0") == ("::1", 0)
    for wrong in ("7300", "host:", ":7300", "host:70000", "host:x", ""):
        with pytest.raises(ValueError, match="expected HOST:PORT"):
            parse_address(wrong)
    assert check_url("https://[::1]:7400/", "x") == "https://[::1]:7400"
    for wrong in ("10.0.0.1:7400", "ftp://x:1", "http://:80", "http://x:1/path", "http://x:99999", "http://a@x:1", ""):
        with pytest.raises(ValueError, match=r"policy\.engine\.url: expected http://HOST:PORT or https://"):
            check_url(wrong, "policy.engine.url")


def test_a_listener_without_tls_is_a_warning_unless_it_is_local() -> None:
    tls = access.Tls(Path("c"), Path("k"))
    for local in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        assert plain_warning((local, 1), None, "fix") is None
    for reached in ("0.0.0.0", "10.0.0.1", "::", "host"):
        assert plain_warning((reached, 1), tls, "fix") is None
        line = plain_warning((reached, 1), None, "set the files")
        assert line is not None
        assert line.startswith("warning: ")
        assert "without TLS" in line
        assert "set the files" in line
