"""A gate that threads pass: closed for a while by one thread, or ended for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class GateEndedError(RuntimeError):
    """The gate lets nobody in any more."""


class Gate:
    """Lets any number of threads in, except while one thread has closed it, or after its end.

    Args:
        ended: what is said to who comes after the end.
    """

    def __init__(self, ended: str) -> None:
        self._text = ended
        self._changed = threading.Condition()
        self._inside, self._closed, self._ended = 0, False, False

    @contextmanager
    def passing(self, timeout: float) -> Iterator[None]:
        """Is inside for the block. Raises TimeoutError if the gate stays closed, GateEndedError after its end."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended or not self._closed, timeout):
                raise TimeoutError(f"weights were loaded for more than {timeout:g} s")
            if self._ended:
                raise GateEndedError(self._text)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def closed(self, timeout: float) -> Iterator[None]:
        """Nobody is inside during the block. One thread may call it. Raises TimeoutError if somebody stays inside."""
        with self._changed:
            self._closed = True
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: not self._inside, timeout):
                    raise TimeoutError(f"{self._inside} calls of the policy have not ended in {timeout:g} s")
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    def end(self, timeout: float) -> int:
        """Lets nobody in any more, and waits at most ``timeout`` seconds for those inside; how many still are."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._inside or self._closed), timeout)
            return self._inside
