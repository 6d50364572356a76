"""The guest's HTTP server by itself: what it refuses, and that connections without a token keep nobody out."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from polling import until

from osworld_gym.guest.server import web
from osworld_gym.guest.server.answers import as_json
from osworld_gym.guest.server.forward import shut
from osworld_gym.guest.server.web import GuestServer

TOKEN = "a token"
OPEN = 400  # more than three times as many idle connections as the server keeps
GOOD = f"GET /health HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()


class Serving:
    """A server with one endpoint that answers and one that waits for the test."""

    def __init__(self, token: str = TOKEN) -> None:
        self.go, self.begun = threading.Event(), threading.Semaphore(0)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = self._listener.getsockname()[:2]
        self.server = GuestServer(
            {("GET", "/health"): lambda _: as_json({}), ("POST", "/slow"): lambda _: self._slow()}, token, lambda: False
        )
        self.server.listen(self._listener.dup())

    def _slow(self) -> Any:
        self.begun.release()
        assert self.go.wait(60)
        return as_json({})

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, 60)

    def close(self) -> None:
        self.go.set()
        shut(self._listener)
        self._listener.close()


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving()
    yield made
    made.close()


def said(connection: socket.socket) -> bytes:
    """All that it says until it closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def closed(connections: list[socket.socket]) -> int:
    """How many of these, which are sent nothing, the server has closed."""
    poll = select.poll()
    for connection in connections:
        poll.register(connection, select.POLLIN)
    return len(poll.poll(0))


def head(connection: socket.socket) -> bytes:
    return connection.recv(1 << 16).split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x00\x01\x02 garbage\r\n\r\n", 400),
        (b"hello there, server, how do you do\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),  # TLS
        (b"GET /health HTTP/9.9\r\n\r\n", 505),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"BREW /health HTTP/1.1\r\n\r\n", 501),
        (b"GET /health HTTP/1.1\r\n\r\n", 401),
        (GOOD.replace(b"/health", b"http://["), 400),
        (GOOD.replace(b"GET", b"POST"), 405),
        (GOOD.replace(b"/health", b"/no"), 404),
        (GOOD.replace(b"\r\n\r\n", b"\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"), 413),
        (GOOD.replace(b"\r\n\r\n", b"\r\nContent-Length: -1\r\n\r\n"), 400),
        (GOOD.replace(b"\r\n\r\n", b"\r\nContent-Length: one\r\n\r\n"), 400),
        (GOOD.replace(b"\r\n\r\n", b"\r\nContent-Length: \xb2\r\n\r\n"), 400),
        (GOOD.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"), 411),
    ],
)
def test_what_is_no_request_is_answered_and_closed(serving: Serving, request_: bytes, status: int) -> None:
    with serving.connect() as connection:
        connection.sendall(request_)
        answer = said(connection)
    assert f" {status} ".encode() in answer.split(b"\r\n")[0] or f"Error code: {status}".encode() in answer


def test_idle_connections_keep_nobody_out(serving: Serving) -> None:
    """The oldest ones are closed; a connection that has shown the token stays, and new ones are accepted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        with ExitStack() as stack:
            known = stack.enter_context(serving.connect())
            known.sendall(GOOD)
            assert head(known) == b"HTTP/1.1 200 OK"
            idle = [stack.enter_context(serving.connect()) for _ in range(OPEN)]
            until(
                lambda: closed(idle) == OPEN - web.MAX_WITHOUT_TOKEN, "the idle connections above the limit are closed"
            )
            for _ in range(3):
                known.sendall(GOOD)
                assert head(known) == b"HTTP/1.1 200 OK"
                with serving.connect() as new:
                    new.sendall(GOOD)
                    assert head(new) == b"HTTP/1.1 200 OK"
            assert threading.active_count() < OPEN
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_a_token_busy_connections_stay_and_the_others_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_WITHOUT_TOKEN", 4)
    serving = Serving("")
    try:
        with ExitStack() as stack:
            busy = [stack.enter_context(serving.connect()) for _ in range(4)]
            for connection in busy[:3]:
                connection.sendall(b"POST /slow HTTP/1.1\r\n\r\n")
                assert serving.begun.acquire(timeout=60)
            with serving.connect() as new:  # takes the place of the one that waits
                assert said(busy[3]) == b""
                new.sendall(b"POST /slow HTTP/1.1\r\n\r\n")
                assert serving.begun.acquire(timeout=60)
                with serving.connect() as late:
                    assert said(late) == b""
                serving.go.set()
                assert {head(connection) for connection in [*busy[:3], new]} == {b"HTTP/1.1 200 OK"}
    finally:
        serving.close()


@pytest.mark.parametrize("start", [b"", b"GET /hea", b"\x00\x01\x02", GOOD[:-2]])
def test_a_request_that_does_not_come_is_given_up(
    serving: Serving, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "HEAD", 0.3)
    monkeypatch.setattr(web, "IDLE", 0.3)
    with serving.connect() as connection:
        began = time.monotonic()
        connection.sendall(start)
        assert b" 200 " not in said(connection)
        assert time.monotonic() - began < 30


def test_a_trickle_of_bytes_does_not_extend_the_time(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "HEAD", 0.5)
    with serving.connect() as connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        until_ = time.monotonic() + 30
        while time.monotonic() < until_:
            connection.sendall(b"a: b\r\n")
            time.sleep(0.1)
        raise AssertionError("the connection was not given up")


def test_a_connection_with_the_token_may_wait(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's client keeps its connection for as long as a policy thinks."""
    monkeypatch.setattr(web, "HEAD", 0.2)
    monkeypatch.setattr(web, "IDLE", 0.2)
    with serving.connect() as connection:
        connection.sendall(GOOD)
        assert head(connection) == b"HTTP/1.1 200 OK"
        time.sleep(0.6)
        connection.sendall(GOOD)
        assert head(connection) == b"HTTP/1.1 200 OK"
    until(lambda: not serving.server.without_token._all, "an ended connection is kept")
