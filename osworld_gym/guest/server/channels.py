"""Multiplexes connections over one pair of byte streams: how a desktop without any network is reached.

Both ends, the owner's and the desktop's, run :class:`Channels`. A frame is channel (4 bytes), kind (1), length (4), all
big endian, then ``length`` bytes. A side may have WINDOW unacknowledged bytes in a channel; the receiver returns credit
as they are read, so that a slow reader delays no other channel. Only an end with ``accept`` accepts new channels: the
desktop cannot reach its owner. What the other end sends can neither block an end nor make it hold more than WINDOW
bytes for each channel that it opened.
"""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

WINDOW = 1 << 20  # unacknowledged bytes of one channel
CHUNK = 1 << 16  # largest frame in bytes
OPEN, DATA, END, CREDIT, RESET = range(1, 6)
_HEAD = struct.Struct(">IBI")
_NUMBER = struct.Struct(">I")


class ProtocolError(Exception):
    """The other end violated the protocol; the link is closed."""


class Channels:
    """One end of the link; :meth:`run` is its reading loop.

    Args:
        read: reads exactly n bytes, fewer only at the end of the stream.
        write: writes all of the bytes or raises OSError; called by one thread at a time.
        accept: handles a channel that the other end opened to a port, in a thread of its own; None: the other end may
            not open channels.
    """

    def __init__(
        self,
        read: Callable[[int], bytes],
        write: Callable[[bytes], object],
        accept: Callable[[Stream, int], object] | None = None,
    ) -> None:
        self._read, self._write, self._accept = read, write, accept
        self._writing, self._lock = threading.Lock(), threading.Lock()
        self._streams: dict[int, Stream] = {}
        self._next = 0
        self._over = False

    def connect(self, port: int) -> Stream:
        """A new channel to the other end's ``port``. Raises ConnectionError if the link has ended."""
        with self._lock:
            if self._over:
                raise ConnectionResetError("the link to the desktop has ended")
            self._next += 1
            stream = self._streams[self._next] = Stream(self, self._next)
        self.send(stream.number, OPEN, _NUMBER.pack(port))
        return stream

    def run(self) -> None:
        """Reads until the stream ends, then breaks every channel.

        Raises:
            ProtocolError: the other end violated the protocol.
        """
        try:
            while len(head := self._read(_HEAD.size)) == _HEAD.size:
                number, kind, length = _HEAD.unpack(head)
                if length > CHUNK:
                    raise ProtocolError(f"expected frames of at most {CHUNK} bytes, got {length}")
                body = self._read(length) if length else b""
                if len(body) < length:
                    return
                self._take(number, kind, body)
        except OSError:
            return
        finally:
            self.close()

    def close(self) -> None:
        """Breaks every channel. The streams of bytes belong to the caller."""
        with self._lock:
            self._over = True
            streams = list(self._streams.values())
            self._streams.clear()
        for stream in streams:
            stream.broken()

    def send(self, number: int, kind: int, body: bytes = b"") -> None:
        """Sends one frame. A link that cannot be written, or only in part, is closed; :meth:`run` ends with it."""
        try:
            with self._writing:
                self._write(_HEAD.pack(number, kind, len(body)) + body)
        except (OSError, ValueError):
            self.close()

    def forget(self, number: int) -> None:
        """Removes a channel that ended in both directions or broke."""
        with self._lock:
            self._streams.pop(number, None)

    def _take(self, number: int, kind: int, body: bytes) -> None:
        if kind == OPEN:
            return self._opened(number, body)
        with self._lock:
            stream = self._streams.get(number)
        if stream is None:
            return  # the frame was sent before the other end received our RESET
        if kind == DATA:
            stream.arrived(body)
        elif kind == END:
            stream.ended()
        elif kind == CREDIT and len(body) == _NUMBER.size:
            stream.granted(_NUMBER.unpack(body)[0])
        elif kind == RESET:
            self.forget(number)
            stream.broken()
        else:
            raise ProtocolError(f"a frame of kind {kind} with {len(body)} bytes")

    def _opened(self, number: int, body: bytes) -> None:
        if self._accept is None or len(body) != _NUMBER.size:
            raise ProtocolError("the other end opened a channel, which it may not")
        stream = Stream(self, number)
        with self._lock:  # at once: its first bytes may follow before the port has answered
            self._streams[number] = stream
        try:
            threading.Thread(target=self._serve, args=(stream, _NUMBER.unpack(body)[0]), daemon=True).start()
        except RuntimeError:  # no more threads: the desktop's limit of processes is reached
            stream.abort()

    def _serve(self, stream: Stream, port: int) -> None:
        assert self._accept is not None
        try:
            self._accept(stream, port)
        except OSError:
            return  # the other end gets a RESET below
        finally:
            stream.abort()


class Stream:
    """One channel, used like a connected socket: one thread may read while another one writes.

    Attributes:
        until: monotonic time in seconds at which reading and writing raise TimeoutError.
    """

    def __init__(self, link: Channels, number: int) -> None:
        self.number, self._link = number, link
        self.until = inf
        self._changed = threading.Condition()
        self._inbox = bytearray()  # what has arrived and was not read
        self._owed = 0  # bytes that were read and not yet credited
        self._credit = WINDOW
        self._ended = self._end_sent = self._broken = self._closed = False
        self._files = 0  # open files of makefile(), which keep a closed stream readable as those of a socket do
        #: called once, when the other end breaks the channel while it has more to say, or the link ends
        self.on_break: Callable[[], object] = _nothing

    def recv(self, size: int = CHUNK) -> bytes:
        """At most ``size`` bytes, as soon as there are any; none at the end. Raises OSError if the channel broke."""
        with self._changed:
            self._await(lambda: bool(self._inbox) or self._ended or self._broken)
            if not self._inbox:
                if self._ended:
                    return b""
                raise ConnectionResetError("the connection to the desktop was closed by the other end")
            data = bytes(self._inbox[:size])
            del self._inbox[:size]
            self._owed += len(data)
            credit = self._owed if self._owed >= WINDOW // 4 else 0  # fewer frames than one for each read
            self._owed -= credit
        if credit:
            self._link.send(self.number, CREDIT, _NUMBER.pack(credit))
        return data

    def recv_into(self, buffer: WriteableBuffer) -> int:
        """As :meth:`recv`, into a buffer of bytes; returns their number."""
        view = memoryview(buffer).cast("B")
        data = self.recv(len(view))
        view[: len(data)] = data
        return len(data)

    def sendall(self, data: ReadableBuffer) -> None:
        """Sends all of ``data``; waits for the other end's credit. Raises OSError if the channel broke."""
        view = memoryview(data).cast("B")
        while len(view):
            with self._changed:
                self._await(lambda: self._credit > 0 or self._broken or self._closed)
                if self._broken or self._closed:
                    raise BrokenPipeError("the connection to the desktop is closed")
                size = min(len(view), CHUNK, self._credit)
                self._credit -= size
            self._link.send(self.number, DATA, bytes(view[:size]))
            view = view[size:]

    def end(self) -> None:
        """Tells the other end that nothing more follows, as ``shutdown(SHUT_WR)``."""
        with self._changed:
            if self._end_sent or self._broken:
                return
            self._end_sent = True
            over = self._ended
            self._changed.notify_all()
        self._link.send(self.number, END)
        if over:
            self._link.forget(self.number)

    def close(self) -> None:
        """Closes both directions, as soon as no file of :meth:`makefile` is open. What was sent still arrives."""
        with self._changed:
            self._closed = True
            if self._files:
                return
        self.abort()

    def abort(self) -> None:
        """Closes both directions at once: whoever reads or writes it gets an error."""
        with self._changed:
            if self._broken or (self._ended and self._end_sent):
                return
        self.end()
        self._link.forget(self.number)
        self._link.send(self.number, RESET)
        self.broken()

    def wait_over(self) -> None:
        """Waits until both directions have ended or the channel broke."""
        with self._changed:
            self._changed.wait_for(lambda: self._broken or (self._ended and self._end_sent))

    def makefile(self, mode: str = "rb") -> io.BufferedReader:
        """A buffered reader, as that of a socket."""
        assert mode == "rb"
        with self._changed:
            self._files += 1
        return io.BufferedReader(_Reader(self))

    def file_closed(self) -> None:
        """A file of :meth:`makefile` was closed."""
        with self._changed:
            self._files -= 1
            close = self._closed and not self._files
        if close:
            self.close()

    def arrived(self, data: bytes) -> None:
        """Queues bytes from the other end. Raises ProtocolError if it exceeds the window."""
        with self._changed:
            held = len(self._inbox) + self._owed + len(data)
            if held > WINDOW:
                raise ProtocolError(f"expected at most {WINDOW} unacknowledged bytes in a channel, got {held}")
            if not self._ended:
                self._inbox += data
            self._changed.notify_all()

    def ended(self) -> None:
        """Nothing more follows from the other end."""
        with self._changed:
            self._ended = True
            over = self._end_sent
            self._changed.notify_all()
        if over:
            self._link.forget(self.number)

    def granted(self, credit: int) -> None:
        """The other end has read ``credit`` bytes."""
        with self._changed:
            self._credit = min(WINDOW, self._credit + credit)
            self._changed.notify_all()

    def broken(self) -> None:
        """The channel is of no more use, except for what has arrived."""
        with self._changed:
            was, self._broken = self._broken, True
            self._changed.notify_all()
        if not was and not self._ended:
            self.on_break()

    def _await(self, done: Callable[[], bool]) -> None:
        """Waits until ``done``, under the lock. Raises TimeoutError at ``until``."""
        while not done():
            left = self.until - monotonic()
            if left <= 0:
                raise TimeoutError("timed out")
            self._changed.wait(None if left == inf else left)


class _Reader(io.RawIOBase):
    """The file of a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        return self._stream.recv_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._stream.file_closed()


def _nothing() -> None:
    pass
