"""Limits the connections that have shown no token, so that they cannot keep out those that have one."""

from __future__ import annotations

import threading

from .channels import Stream
from .deadline_socket import DeadlineSocket

Connection = DeadlineSocket | Stream


class ConnectionLimit:
    """The connections that have shown no token. At the limit, the one that has waited longest for a request gives way.

    Args:
        most: how many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._all: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}  # for a request, the longest first

    def admit(self, connection: Connection) -> bool:
        """Adds a new connection; False if there are too many and every one of them is handling a request."""
        with self._lock:
            oldest = None
            if len(self._all) >= self._most:
                oldest = next(iter(self._waiting), None)
                if oldest is None:
                    return False
                self._drop(oldest)
            self._all.add(connection)
            self._waiting[connection] = None
        if oldest is not None:
            oldest.abort()
        return True

    def waits(self, connection: Connection) -> bool:
        """Notes that a connection waits for its next request; returns whether it has shown no token."""
        with self._lock:
            if connection not in self._all:
                return False
            self._waiting.pop(connection, None)
            self._waiting[connection] = None
            return True

    def works(self, connection: Connection) -> None:
        """Notes that a connection is handling a request."""
        with self._lock:
            self._waiting.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        """The connection has ended, or has shown the token."""
        with self._lock:
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._all.discard(connection)
        self._waiting.pop(connection, None)
