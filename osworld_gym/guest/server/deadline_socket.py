"""A connected socket that is read until a fixed time instead of with a timeout for each call."""

from __future__ import annotations

import socket
from math import inf
from time import monotonic
from typing import Any, Self


class DeadlineSocket(socket.socket):
    """Has the interface of :class:`~.channels.Stream`: a slow trickle of bytes does not extend the time."""

    until = inf  #: monotonic time in seconds at which reading and sending raise TimeoutError

    @classmethod
    def of(cls, plain: socket.socket) -> Self:
        """Takes over a socket."""
        return cls(plain.family, plain.type, plain.proto, plain.detach())

    def recv_into(self, *arguments: Any) -> int:
        self._limit()
        return super().recv_into(*arguments)

    def sendall(self, *arguments: Any) -> None:
        self._limit()
        super().sendall(*arguments)

    def _limit(self) -> None:
        left = self.until - monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(None if left == inf else left)

    def abort(self) -> None:
        """Closes both directions at once: whoever reads or writes it gets an error or the end."""
        try:
            self.shutdown(socket.SHUT_RDWR)
        except OSError:  # the other end has closed it
            return
