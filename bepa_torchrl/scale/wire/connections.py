"""Connection: one of a server's, which is closed if its client does not send a request (uvicorn's, h11).

uvicorn itself has no deadline before the headers of a request are complete, and every connection has a place of
``limit_concurrency``: without one, whoever reaches the port could keep out those who have the token.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 30.0  #: for the headers of a request, from the start of a connection or from their first byte


class Connection(H11Protocol):
    """Has a deadline for headers. At most half of the places are for those that have sent no request yet.

    The server closes those whose request has no token.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._since = monotonic()
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        """Of the headers that are awaited; none once they are complete."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._end_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._drop)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        """Closes the oldest connection without a request if there are too many of them."""
        if self.limit_concurrency is None or len(self.connections) <= self.limit_concurrency // 2:
            return
        silent = [each for each in self.connections if isinstance(each, Connection) and each.cycle is None]
        if len(silent) > self.limit_concurrency // 2:
            min(silent, key=lambda each: each._since)._drop()

    def _drop(self) -> None:
        self.connections.discard(self)  # its place is free at once
        self.transport.abort()
