"""The owner's end of a guest's stdin and stdout: configuration, reply, then the channels to its ports.

They are pipes, so that no socket of this machine's network is inside the sandbox, where a program could copy it from
the guest and connect it again. Whatever a guest writes, it reaches nothing by it (``guest/server/channels.py``).
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import threading
from contextlib import suppress
from time import monotonic

from osworld_gym.guest.server.channels import Channels, ProtocolError, Stream
from osworld_gym.guest.server.forward import shut, to_channels

LOG = logging.getLogger(__name__)
LINE = 1 << 16  # most bytes of a guest's first line
WRITE = 20.0  # seconds for a guest to read what is sent to it


class GuestLink:
    """Pipes to a guest, which :meth:`close` closes.

    Args:
        stdin: descriptor of the pipe that the guest reads.
        stdout: descriptor of the pipe that it writes.
    """

    def __init__(self, stdin: int, stdout: int) -> None:
        os.set_blocking(stdin, False)
        self._stdin, self._stdout = stdin, stdout
        self._lock = threading.Lock()  # held while stdin is written
        self._closed = False
        self._channels: Channels | None = None
        self._listeners: list[socket.socket] = []

    def tell(self, order: dict[str, object]) -> None:
        """Sends the guest's configuration. Does nothing if it has ended: its log has the reason."""
        with suppress(OSError):
            self._write(json.dumps(order).encode() + b"\n")

    def hear(self, until: float) -> bytes:
        """The guest's first line; less if it ended, or if the line is too long.

        Raises:
            TimeoutError: there was none until the monotonic time ``until``.
        """
        line = b""
        while not line.endswith(b"\n") and len(line) < LINE:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, until - monotonic()))
            if not ready:
                raise TimeoutError
            part = os.read(self._stdout, LINE)
            if not part:
                break
            line += part
        return line

    def connect(self, listeners: dict[int, socket.socket]) -> None:
        """Forwards each connection of a listening socket to the guest's port. The sockets are closed with the link."""
        reader = os.fdopen(self._stdout, "rb")
        self._stdout = -1  # closed by the thread that reads it
        self._channels = channels = Channels(reader.read, self._write)
        self._listeners = list(listeners.values())
        for port, listener in listeners.items():
            to_channels(listener, channels, port)

        def carry() -> None:
            try:
                with reader:
                    channels.run()
            except ProtocolError as error:
                LOG.warning("a guest violated the protocol of its pipe, which is closed: %s", error)
            finally:
                self._shut()

        threading.Thread(target=carry, name="guest", daemon=True).start()

    def dial(self, port: int) -> Stream:
        """A connection to the guest's port, without TCP. Raises ConnectionError if the guest has ended."""
        if self._channels is None:
            raise ConnectionResetError("the guest is not connected")
        return self._channels.connect(port)

    def close(self) -> None:
        """Closes stdin and every connection. May be called twice."""
        self._closed = True
        if self._lock.acquire(blocking=False):  # else the thread that writes closes it
            try:
                self._drop()
            finally:
                self._lock.release()
        if self._stdout >= 0:
            os.close(self._stdout)
            self._stdout = -1
        self._shut()
        if self._channels is not None:
            self._channels.close()

    def _shut(self) -> None:
        """Shuts the listening sockets down, which ends and closes them."""
        for listener in self._listeners:
            shut(listener)

    def _write(self, data: bytes) -> None:
        """Writes all of ``data``. Raises OSError if the guest has ended or does not read."""
        until = monotonic() + WRITE
        with self._lock:
            try:
                view = memoryview(data)
                while view:
                    if self._closed or monotonic() > until:
                        raise BrokenPipeError("the guest does not read")
                    try:
                        view = view[os.write(self._stdin, view) :]
                    except BlockingIOError:
                        select.select([], [self._stdin], [], max(0.0, until - monotonic()))
            finally:
                if self._closed:
                    self._drop()

    def _drop(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
