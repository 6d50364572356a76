"""A pool of evaluator processes, started on demand and shared by all desktops of this process."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.evaluation.sidecar.process import Serve, Sidecar


class SidecarPool:
    """At most ``size`` processes. Thread-safe; the wait for a free process has a deadline.

    Args:
        start: a function that starts a process.
        size: maximum number of processes.
    """

    def __init__(self, start: Callable[[], Sidecar], size: int) -> None:
        self._start = start
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[Sidecar] = []
        self._closed = False
        atexit.register(self.close)

    def ask(self, question: Mapping[str, Any], deadline: float, serve: Serve | None = None) -> dict[str, Any]:
        """The reply to one request; see :meth:`Sidecar.ask`.

        Raises:
            Exhausted: the result needs more than the process may use.
            DesktopError: ``evaluator_failed``: no process was free, or it failed, or reported an error.
        """
        with self.borrow(deadline) as sidecar:
            reply = sidecar.ask(question, deadline, serve)
        if "error" in reply:
            raise DesktopError(FailureReason.evaluator_failed, reply["error"])
        return reply

    @contextmanager
    def borrow(self, deadline: float) -> Iterator[Sidecar]:
        """A process for the caller alone."""
        sidecar = self.acquire(deadline)
        try:
            yield sidecar
        finally:
            self.release(sidecar)

    def acquire(self, deadline: float) -> Sidecar:
        """A process for the caller alone, until it calls :meth:`release`."""
        if not self._free.acquire(timeout=deadline):
            raise DesktopError(FailureReason.evaluator_failed, f"no evaluator process was free within {deadline:g} s")
        try:
            with self._lock:
                alive = [sidecar for sidecar in self._idle if sidecar.alive]
                for sidecar in self._idle:
                    if sidecar not in alive:
                        sidecar.end()
                self._idle = alive[:-1]
            return alive[-1] if alive else self._start()
        except BaseException:
            self._free.release()
            raise

    def release(self, sidecar: Sidecar) -> None:
        """Returns a process to the pool; one that has exited is dropped."""
        with self._lock:
            if sidecar.alive and not self._closed:
                self._idle.append(sidecar)
            else:
                sidecar.end()
        self._free.release()

    def close(self) -> None:
        """Ends the processes; busy ones end after their current request."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for sidecar in idle:
            sidecar.end()
