"""The handshake and the frames: who may connect, and that nothing is changed, cut, repeated or without end."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bepa_torchrl.scale.rollouts.channel import handshake
from bepa_torchrl.scale.rollouts.channel.connection import Connection
from bepa_torchrl.scale.rollouts.channel.errors import BrokenConnectionError, ProtocolError
from bepa_torchrl.scale.rollouts.channel.handshake import (
    Keys,
    greet_as_rollouts,
    greet_as_trainer,
    parse_address,
    read_token,
)
from bepa_torchrl.scale.rollouts.channel.messages import SCHEMA, Message
from osworld_gym import __version__

TOKEN = b"a token of this test"
HELLO = 46  # bytes


def both(trainer: Callable[[socket.socket], Any], rollouts: Callable[[socket.socket], Any]) -> tuple[Any, Any]:
    """What the two sides of a handshake return or raise."""
    ends = socket.socketpair()
    results: list[Any] = [None, None]

    def run(number: int, side: Callable[[socket.socket], Any]) -> None:
        try:
            results[number] = side(ends[number])
        except (ProtocolError, BrokenConnectionError) as error:
            results[number] = error
            ends[number].close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate((trainer, rollouts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    for end in ends:
        end.close()
    return results[0], results[1]


def trainer(token: bytes = TOKEN, **options: Any) -> Callable[[socket.socket], Keys]:
    return lambda sock: greet_as_trainer(sock, token, **({"timeout": 20.0} | options))


def rollouts(token: bytes = TOKEN, **options: Any) -> Callable[[socket.socket], Keys]:
    return lambda sock: greet_as_rollouts(sock, token, **({"timeout": 20.0} | options))


def test_both_sides_derive_the_same_keys_which_differ_per_connection_and_direction() -> None:
    one, other = both(trainer(), rollouts())
    again, _ = both(trainer(), rollouts())
    assert (one.send, one.receive) == (other.receive, other.send)
    assert len({one.send, one.receive, again.send, again.receive}) == 4


def test_another_token_is_refused_on_both_sides() -> None:
    one, other = both(trainer(), rollouts(b"another token of it"))
    assert str(one) == "a wrong token"
    assert isinstance(one, ProtocolError)
    assert isinstance(other, ProtocolError)
    assert "the trainer refuses the token; use the same one" in str(other)


def test_another_schema_is_refused_on_both_sides() -> None:
    for error in both(trainer(), rollouts(schema=SCHEMA + 1)):
        assert isinstance(error, ProtocolError)
        assert "install the same version of this package on both sides" in str(error)
        assert f"version {SCHEMA} " in str(error) or f"version {SCHEMA + 1} " in str(error)


def test_another_version_of_the_package_is_refused_on_both_sides() -> None:
    """The schema is the same; the version of the other side is shown, whatever it says."""
    one, other = both(trainer(version="1.2.0"), rollouts(version="1.10.0\n\x1b[31m"))
    fix = "; install the same version of this package on both sides"
    assert isinstance(one, ProtocolError)
    assert str(one) == "expected version 1.2.0 of this package, the other side has 1.10.0\\n\\x1b[31m" + fix
    assert isinstance(other, ProtocolError)
    assert "the other side has 1.2.0" + fix in str(other)
    assert isinstance(both(trainer(version=""), rollouts(version=""))[0], Keys)


def test_the_versions_are_part_of_what_is_proved() -> None:
    """Who is between both sides and tells each its own version has their agreement, but not their proofs."""
    ends = socket.socketpair(), socket.socketpair()
    results: list[Any] = [None, None]

    def run(number: int, side: Callable[[socket.socket], Any]) -> None:
        try:
            results[number] = side(ends[number][0])
        except (ProtocolError, BrokenConnectionError) as error:
            results[number] = error

    sides = (trainer(version="1.0"), rollouts(version="2.0"))
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(sides)]
    for thread in threads:
        thread.start()
    end = handshake.monotonic() + 20
    hellos = [handshake._read(pair[1], HELLO, end) for pair in ends]
    for pair, hello, version in zip(ends, reversed(hellos), (b"1.0", b"2.0"), strict=True):
        pair[1].sendall(hello + b"\3" + version)
        handshake._read(pair[1], 4, end)
    ends[0][1].sendall(handshake._read(ends[1][1], 32, end))
    ends[1][1].sendall(handshake._read(ends[0][1], 33, end))
    for thread in threads:
        thread.join(30.0)
    for pair in ends:
        for sock in pair:
            sock.close()
    assert all(isinstance(result, ProtocolError) for result in results)


def test_who_does_not_know_the_token_cannot_pass_for_the_trainer() -> None:
    def impostor(sock: socket.socket) -> None:
        """Sends the client's own proof back, with a hello of its own."""
        version = bytes([len(__version__)]) + __version__.encode()
        sock.sendall(handshake._HELLO.pack(b"BEPA-CHANNEL", SCHEMA, bytes(32)) + version)
        proof = handshake._read(sock, HELLO + len(version) + 32, handshake.monotonic() + 20)[-32:]
        sock.sendall(b"\1" + proof)

    _, error = both(impostor, rollouts())
    assert isinstance(error, ProtocolError)
    assert "it is not the trainer" in str(error)


def test_another_program_and_silence_are_refused() -> None:
    def http(sock: socket.socket) -> None:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: example\r\nAccept: everything\r\n\r\n")

    error, _ = both(trainer(), http)
    assert isinstance(error, ProtocolError)
    assert "no bepa program" in str(error)
    error, _ = both(trainer(timeout=0.1), lambda _: None)
    assert isinstance(error, BrokenConnectionError)


Ends = tuple[Connection, Connection, socket.socket]


@pytest.fixture
def connected() -> Iterator[Callable[..., Ends]]:
    """Makes two ends, and a socket that sends raw bytes to the second."""
    sockets: list[socket.socket] = []

    def make(*, timeout: float = 20.0, max_frame: int = 1 << 20) -> Ends:
        one, other = socket.socketpair()
        sockets.extend((one, other))
        keys = Keys(b"a" * 32, b"b" * 32)
        first = Connection(one, keys, timeout=timeout, max_frame=max_frame)
        second = Connection(other, Keys(keys.receive, keys.send), timeout=timeout, max_frame=max_frame)
        return first, second, one

    yield make
    for sock in sockets:
        sock.close()


def frame(sender: Connection, message: Message) -> bytes:
    """The bytes that a connection would send."""
    one, other = socket.socketpair()
    sock, sender._sock = sender._sock, one
    sender.send(message)
    sender._sock = sock
    data = other.recv(1 << 20)
    one.close()
    other.close()
    return data


def test_messages_cross_in_both_directions(connected: Callable[..., Ends]) -> None:
    first, second, _ = connected()
    for number in range(3):
        first.send(Message("k", number, {"a": 1}, (b"x" * 1000, b"")))
        second.send(Message("r", number))
        assert second.receive() == Message("k", number, {"a": 1}, (b"x" * 1000, b""))
        assert first.receive() == Message("r", number, {}, ())


def test_silence_is_none_and_the_end_is_an_error(connected: Callable[..., Ends]) -> None:
    first, second, _ = connected(timeout=0.05)
    assert second.receive() is None
    first.close()
    with pytest.raises(BrokenConnectionError, match=r"the other side closed the connection$"):
        second.receive()


def test_a_frame_that_is_too_long_is_neither_sent_nor_read(connected: Callable[..., Ends]) -> None:
    first, second, raw = connected(max_frame=1000)
    with pytest.raises(ValueError, match="at most 1000 bytes in a message, got 1"):
        first.send(Message("k", 1, {}, (b"x" * 1000,)))
    first.send(Message("k", 2))
    assert second.receive() == Message("k", 2, {}, ())
    raw.sendall(struct.pack(">Q", 1001))
    with pytest.raises(BrokenConnectionError, match="at most 1000 bytes, got one of 1001"):
        second.receive()


def test_a_frame_that_is_cut_is_an_error_whether_the_connection_ends_or_not(connected: Callable[..., Ends]) -> None:
    for cut in (4, 20, -1):
        first, second, raw = connected(timeout=0.05)
        raw.sendall(frame(first, Message("k", 1))[:cut])
        with pytest.raises(BrokenConnectionError, match=r"a frame stopped after \d+ of \d+ bytes for 0.05 s"):
            second.receive()
        first, second, raw = connected()
        raw.sendall(frame(first, Message("k", 1))[:cut])
        first.close()
        with pytest.raises(BrokenConnectionError, match="closed the connection within a frame"):
            second.receive()


def test_a_frame_that_is_changed_repeated_left_out_or_sent_back_is_refused(connected: Callable[..., Ends]) -> None:
    for position in (9, 40, -1):
        first, second, raw = connected()
        data = bytearray(frame(first, Message("k", 1)))
        data[position] ^= 1
        raw.sendall(data)
        with pytest.raises(BrokenConnectionError, match="not authentic"):
            second.receive()
    first, second, raw = connected()
    data = bytearray(frame(first, Message("k", 1)))
    raw.sendall(data)
    assert second.receive() == Message("k", 1, {}, ())
    raw.sendall(data)
    with pytest.raises(BrokenConnectionError, match="not authentic"):
        second.receive()
    first, second, raw = connected()
    frame(first, Message("k", 1))
    raw.sendall(frame(first, Message("k", 2)))
    with pytest.raises(BrokenConnectionError, match="not authentic"):
        second.receive()
    first, second, raw = connected()
    raw.sendall(frame(second, Message("k", 1)))
    with pytest.raises(BrokenConnectionError, match="not authentic"):
        second.receive()


def test_sending_to_one_who_does_not_read_has_a_deadline(connected: Callable[..., Ends]) -> None:
    first, _second, _ = connected(timeout=0.05, max_frame=64 << 20)
    with pytest.raises(BrokenConnectionError, match="ended while a message was sent"):
        first.send(Message("k", 1, {}, (bytes(32 << 20),)))
    assert first.closed.is_set()


def test_the_token_is_read_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(" 0123456789abcdef\n")
    assert read_token(path, {}) == b"0123456789abcdef"
    assert read_token(None, {"BEPA_CHANNEL_TOKEN": "0123456789abcdef"}) == b"0123456789abcdef"
    path.write_text("short")
    for source, environment in ((path, {}), (None, {"BEPA_CHANNEL_TOKEN": "short"})):
        with pytest.raises(ValueError, match="of at least 16 bytes, got 5; make one by `openssl"):
            read_token(source, environment)
    with pytest.raises(ValueError, match="or in BEPA_CHANNEL_TOKEN; BEPA_CHANNEL_TOKEN has none"):
        read_token(None, {})
    with pytest.raises(FileNotFoundError):
        read_token(tmp_path / "none", {})


def test_addresses() -> None:
    assert parse_address("10.0.0.1:7300") == ("10.0.0.1", 7300)
    assert parse_address("[::1]:0") == ("::1", 0)
    for wrong in ("7300", "host:", ":7300", "host:70000", "host:x", ""):
        with pytest.raises(ValueError, match="expected HOST:PORT"):
            parse_address(wrong)
