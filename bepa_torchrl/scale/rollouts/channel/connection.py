"""A connection after the handshake: messages as authenticated frames of limited length, never without a deadline.

    uint64 n | n bytes of the message | 32 bytes: keyed BLAKE2b of the frame's number, n and the message

Frames are numbered per direction, so that none can be changed, left out, repeated or exchanged.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress

from bepa_torchrl.scale.rollouts.channel.errors import BrokenConnectionError
from bepa_torchrl.scale.rollouts.channel.handshake import Keys
from bepa_torchrl.scale.rollouts.channel.messages import Message, pack, unpack

MAX_FRAME = 1 << 30  #: bytes of a message
_HEADER = struct.Struct(">Q")
_MAC = 32
_SLICE = 256 << 10  #: bytes that must be sent or received within the timeout


class Connection:
    """Sends from many threads, receives in one.

    Args:
        sock: after the handshake.
        keys: from the handshake.
        timeout: seconds without progress after which sending, or receiving the rest of a frame, fails.
        max_frame: maximum bytes of a message, in both directions.
    """

    def __init__(self, sock: socket.socket, keys: Keys, *, timeout: float, max_frame: int = MAX_FRAME) -> None:
        sock.settimeout(timeout)
        with suppress(OSError):  # not TCP, in a test
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._keys, self._timeout, self._max_frame = sock, keys, timeout, max_frame
        self._lock = threading.Lock()
        self._sent = self._received = 0
        self.closed = threading.Event()

    def send(self, message: Message) -> None:
        """Sends a message.

        Raises:
            ValueError: it is longer than ``max_frame``; nothing is sent.
            BrokenConnectionError: the connection has ended; part of the message may have been sent.
        """
        parts = pack(message)
        header = _HEADER.pack(sum(map(len, parts)))
        if _HEADER.unpack(header)[0] > self._max_frame:
            raise ValueError(f"expected at most {self._max_frame} bytes in a message, got {sum(map(len, parts))}")
        with self._lock:
            mac = _mac(self._keys.send, self._sent, [header, *parts])
            self._sent += 1
            try:
                for part in (header, *parts, mac):
                    view = memoryview(part)
                    for start in range(0, len(view), _SLICE):
                        self._sock.sendall(view[start : start + _SLICE])
            except OSError as error:
                self.close()
                raise BrokenConnectionError(f"the connection ended while a message was sent: {error}") from error

    def receive(self) -> Message | None:
        """The next message; None if none began within the timeout.

        Raises:
            BrokenConnectionError: the connection has ended, a frame is too long, incomplete, or not authentic.
            ProtocolError: an authentic frame has no message in it.
        """
        first = self._read(_HEADER.size, idle=True)
        if first is None:
            return None
        (length,) = _HEADER.unpack(first)
        if length > self._max_frame:
            raise BrokenConnectionError(f"expected a frame of at most {self._max_frame} bytes, got one of {length}")
        body, mac = self._read(length) or bytearray(), self._read(_MAC)
        assert mac is not None
        if not hmac.compare_digest(bytes(mac), _mac(self._keys.receive, self._received, [bytes(first), body])):
            raise BrokenConnectionError("a frame is not authentic: it was changed, repeated or left out on its way")
        self._received += 1
        return unpack(body)

    def finish(self) -> None:
        """Sends no more; the other side receives what was sent, then the end."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Ends both directions; a thread that receives gets a BrokenConnectionError."""
        self.closed.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self._sock.close()

    def _read(self, count: int, *, idle: bool = False) -> bytearray | None:
        """Exactly ``count`` bytes; with ``idle`` None if there is none within the timeout."""
        data = bytearray()
        while len(data) < count:
            try:
                part = self._sock.recv(min(_SLICE, count - len(data)))
            except TimeoutError as error:
                if idle and not data:
                    return None
                raise BrokenConnectionError(
                    f"a frame stopped after {len(data)} of {count} bytes for {self._timeout:g} s"
                ) from error
            except OSError as error:
                raise BrokenConnectionError(f"the connection ended: {error}") from error
            if not part:
                inside = f" within a frame, after {len(data)} of {count} bytes" if data or not idle else ""
                raise BrokenConnectionError(f"the other side closed the connection{inside}")
            data += part
        return data


def _mac(key: bytes, number: int, parts: Iterable[bytes | bytearray]) -> bytes:
    code = hashlib.blake2b(number.to_bytes(8, "big"), key=key, digest_size=_MAC)
    for part in parts:
        code.update(part)
    return code.digest()
