"""The owner's end of a container's stdin and stdout: configuration, reply, then the container's ports on 127.0.0.1.

No ports are published and no network is required. When this process ends, the engine closes the container's stdin,
which ends the container.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.server.channels import Channels, ProtocolError
from osworld_gym.guest.server.forward import shut, to_channels

LOG = logging.getLogger(__name__)
LINE = 1 << 16  # longest first line of the guest in bytes
SAID = 4096  # bytes of its standard error that are kept
_STDOUT, _STDERR = 1, 2


class ContainerPipe:
    """Connects to ``osworld_guest.container piped`` through an attached stream.

    Args:
        stream: the socket of an ``attach`` with stdin, stdout and stderr, before the container starts; closed by
            :meth:`close`.
        ports: the container's ports to forward to this machine.
    """

    def __init__(self, stream: Any, ports: Sequence[int]) -> None:
        self._stream = stream
        self._socket: socket.socket = vars(stream)["_sock"] if isinstance(stream, socket.SocketIO) else stream
        self._pending, self._said = bytearray(), bytearray()
        self._channels = Channels(self._read, self._write)
        self._listeners = {port: socket.create_server(("127.0.0.1", 0)) for port in ports}
        self._started = False

    def address(self, port: int) -> tuple[str, int]:
        """(host, port) on this machine of a forwarded port. Raises KeyError if the port is not forwarded."""
        host, number = self._listeners[port].getsockname()[:2]
        return host, number

    def start(self, order: dict[str, object], deadline: float) -> None:
        """Sends the guest's configuration, waits for its reply, and starts forwarding the ports.

        Args:
            order: the configuration of the guest.
            deadline: seconds to wait for the reply.

        Raises:
            DesktopError: ``never_ready``, with the guest's error or log.
        """
        line, end = bytearray(), time.monotonic() + deadline
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
            while not line.endswith(b"\n") and len(line) < LINE:
                self._socket.settimeout(max(0.01, end - time.monotonic()))
                part = self._read(1)
                if not part:
                    break
                line += part
            self._socket.settimeout(None)
        except TimeoutError:
            raise DesktopError(FailureReason.never_ready, f"the desktop was not ready within {deadline:g} s") from None
        except OSError as error:
            raise DesktopError(FailureReason.never_ready, f"{error}; its log: {self.said}") from error
        try:
            answer = json.loads(line) if line else {"error": self.said}
        except ValueError:
            answer = {"error": f"it answered {bytes(line[:200])!r}, which is not JSON"}
        if "error" in answer:
            raise DesktopError(FailureReason.never_ready, str(answer["error"]))
        self._started = True
        for port, listener in self._listeners.items():
            to_channels(listener, self._channels, port)
        threading.Thread(target=self._carry, daemon=True).start()

    @property
    def said(self) -> str:
        """The end of its standard error."""
        return self._said.decode("utf-8", "replace").strip() or "nothing"

    def close(self) -> None:
        """Closes the container's stdin and every connection. Never raises."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for listener in self._listeners.values():
            if self._started:
                shut(listener)  # the thread that accepts its connections closes it
            else:
                listener.close()
        self._channels.close()
        with contextlib.suppress(OSError):
            self._stream.close()
        self._socket.close()

    def _carry(self) -> None:
        try:
            self._channels.run()
        except ProtocolError as error:
            LOG.warning("a container violated the protocol of its pipe, which is closed: %s", error)

    def _write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def _read(self, count: int) -> bytes:
        """Reads exactly ``count`` bytes of the container's stdout, fewer at its end; keeps stderr separately."""
        while len(self._pending) < count:
            head = self._exactly(8)
            if len(head) < 8:
                break
            kind, length = struct.unpack(">BxxxI", head)
            body = self._exactly(length)
            if kind == _STDOUT:
                self._pending += body
            elif kind == _STDERR:
                self._said = (self._said + body)[-SAID:]
        out = bytes(self._pending[:count])
        del self._pending[:count]
        return out

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(1 << 16, count - len(parts)))
            if not part:
                break
            parts += part
        return bytes(parts)
