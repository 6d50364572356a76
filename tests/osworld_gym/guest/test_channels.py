"""Channels: many connections multiplexed over one pair of streams, with real sockets at both ends."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from polling import until

from osworld_gym.guest.server import channels
from osworld_gym.guest.server.channels import CHUNK, DATA, OPEN, WINDOW, Channels, ProtocolError, Stream
from osworld_gym.guest.server.forward import join

Serve = Callable[[Callable[[socket.socket], None]], int]


@dataclass
class Link:
    """Both ends, over a socket pair."""

    owner: Channels
    desktop: Channels
    wire: tuple[socket.socket, socket.socket]

    def connect(self, port: int) -> socket.socket:
        near, far = socket.socketpair()

        def carry() -> None:
            with contextlib.suppress(OSError), far, contextlib.closing(self.owner.connect(port)) as stream:
                join(far, stream)

        threading.Thread(target=carry, daemon=True).start()
        near.settimeout(20)
        return near


def _accept(stream: Stream, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as local:
        local.settimeout(None)
        join(local, stream)


@pytest.fixture
def link() -> Iterator[Link]:
    left, right = socket.socketpair()
    readers = [left.makefile("rb"), right.makefile("rb")]
    owner = Channels(readers[0].read, left.sendall)
    desktop = Channels(readers[1].read, right.sendall, _accept)
    threads = [threading.Thread(target=end.run, daemon=True) for end in (owner, desktop)]
    for thread in threads:
        thread.start()
    yield Link(owner, desktop, (left, right))
    for wire in (left, right):
        with contextlib.suppress(OSError):
            wire.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for closed in (*readers, left, right):
        closed.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A real server on a port; a function handles each connection."""
    listeners = []

    def start(answer: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


def _echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while data := connection.recv(CHUNK):
            connection.sendall(data)


def _all(connection: socket.socket) -> bytes:
    parts = []
    while data := connection.recv(1 << 16):
        parts.append(data)
    return b"".join(parts)


def test_bytes_come_back_whole_and_in_order_on_many_at_once(link: Link, serve: Serve) -> None:
    port = serve(_echo)
    wrong = []

    def talk(seed: int) -> None:
        data = os.urandom(3 * WINDOW + seed)  # more than a window, so that credit must be returned
        with link.connect(port) as connection:
            sender = threading.Thread(target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR)))
            sender.start()
            got = _all(connection)
            sender.join()
        if hashlib.sha256(got).digest() != hashlib.sha256(data).digest():
            wrong.append(seed)

    threads = [threading.Thread(target=talk, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []


def test_first_bytes_may_come_before_the_port_has_answered(link: Link, serve: Serve) -> None:
    """The desktop's end connects on a thread; data that arrives meanwhile is queued."""
    gate = threading.Event()

    def slow(stream: Stream, port: int) -> None:
        assert gate.wait(10)
        _accept(stream, port)

    link.desktop._accept = slow
    with link.connect(serve(_echo)) as connection:
        connection.sendall(b"early")
        gate.set()
        assert connection.recv(5) == b"early"


def test_a_slow_reader_holds_up_nobody_else(link: Link, serve: Serve) -> None:
    def flood(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(bytes(8 * WINDOW))

    with link.connect(serve(flood)) as slow, link.connect(serve(_echo)) as other:
        other.sendall(b"still here")
        assert other.recv(10) == b"still here"
        assert len(slow.recv(1)) == 1


def test_half_closed_connections_carry_the_answer(link: Link, serve: Serve) -> None:
    def count(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"%d" % len(_all(connection)))

    with link.connect(serve(count)) as connection:
        connection.sendall(b"x" * 1000)
        connection.shutdown(socket.SHUT_WR)
        assert _all(connection) == b"1000"


def test_a_port_that_nobody_serves_ends_the_connection_alone(link: Link, serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with link.connect(port) as refused:
        assert refused.recv(1) == b""
    with link.connect(serve(_echo)) as connection:
        connection.sendall(b"ok")
        assert connection.recv(2) == b"ok"


def test_ended_connections_are_forgotten(link: Link, serve: Serve) -> None:
    port = serve(_echo)
    for _ in range(20):
        with link.connect(port) as connection:
            connection.sendall(b"a")
            assert connection.recv(1) == b"a"
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    until(lambda: not link.owner._streams and not link.desktop._streams, "an ended connection is kept")


def test_a_connection_that_is_closed_at_one_end_ends_at_the_other(link: Link, serve: Serve) -> None:
    """Also with data that the other end has not read, and while both of its directions are open."""
    ended = threading.Event()

    def idle(connection: socket.socket) -> None:
        with connection:
            _all(connection)
            ended.set()

    near = link.connect(serve(idle))
    near.sendall(b"x")
    near.close()
    assert ended.wait(20)
    until(lambda: not link.owner._streams and not link.desktop._streams, "a closed connection is kept")


def test_a_stream_is_read_and_written_until_a_fixed_time(link: Link, serve: Serve) -> None:
    stream = link.owner.connect(serve(_echo))
    with stream.makefile("rb") as reader:
        stream.sendall(b"one line\n")
        assert reader.readline() == b"one line\n"
        stream.until = time.monotonic() + 0.05
        with pytest.raises(TimeoutError):
            reader.read(1)
        with pytest.raises(TimeoutError):
            stream.sendall(bytes(64 * WINDOW))  # the echo is not read, so that no credit comes back
        stream.close()  # as with a socket, its open file can still be read
        assert stream.number in link.owner._streams
    assert stream.number not in link.owner._streams


def test_what_was_sent_before_the_end_arrives(link: Link, serve: Serve) -> None:
    def say(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"y" * 100_000)

    stream = link.owner.connect(serve(say))
    stream.until = time.monotonic() + 20
    with stream.makefile("rb") as reader:
        assert reader.read() == b"y" * 100_000
    stream.close()


def test_a_link_that_cannot_be_written_is_closed() -> None:
    def refuse(data: bytes) -> None:
        raise BrokenPipeError(len(data))

    owner = Channels(lambda _: b"", refuse)
    stream = owner.connect(5000)
    with pytest.raises(ConnectionError):
        stream.recv()
    with pytest.raises(ConnectionError):
        owner.connect(5000)


def test_the_end_of_the_stream_closes_every_connection(link: Link, serve: Serve) -> None:
    with link.connect(serve(_echo)) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        link.wire[1].shutdown(socket.SHUT_RDWR)
        assert connection.recv(1) == b""
    with pytest.raises(ConnectionError):
        link.owner.connect(1)


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        (struct.pack(">IBI", 1, OPEN, 4) + struct.pack(">I", 22), "may not"),
        (struct.pack(">IBI", 1, DATA, CHUNK + 1), "at most"),
        (struct.pack(">IBI", 7, DATA, 1) + b"x", ""),  # of a closed channel: ignored
        (struct.pack(">IBI", 1, DATA, 9), ""),  # truncated
    ],
)
def test_what_the_desktop_may_not_send(frames: bytes, said: str) -> None:
    """The owner's end accepts no channels: nothing inside can reach the owner's machine."""
    left, right = socket.socketpair()
    with left, right, left.makefile("rb") as reader:
        right.sendall(frames)
        right.close()
        owner = Channels(reader.read, left.sendall)
        if said:
            with pytest.raises(ProtocolError, match=said):
                owner.run()
        else:
            owner.run()


def test_more_than_the_window_ends_the_link() -> None:
    left, right = socket.socketpair()
    with left, right, left.makefile("rb") as reader:
        owner = Channels(reader.read, left.sendall)
        stream = owner.connect(5000)  # and nobody reads it
        frame = struct.pack(">IBI", stream.number, DATA, CHUNK) + bytes(CHUNK)

        def flood() -> None:
            with contextlib.suppress(OSError):
                for _ in range(2 * WINDOW // CHUNK + 64):
                    right.sendall(frame)

        thread = threading.Thread(target=flood)
        thread.start()
        with pytest.raises(ProtocolError, match="unacknowledged"):
            owner.run()
        left.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        assert not thread.is_alive()


def test_a_frame_is_nine_bytes_and_its_body() -> None:
    assert channels._HEAD.size == 9
