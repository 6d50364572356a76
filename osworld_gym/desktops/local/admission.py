"""Admission control: limits the desktops that start at the same time, since each start uses a core and memory.

A start waits for its turn; it fails with ``never_ready`` only if it waits longer than its deadline.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from osworld_gym.desktops.local.keeper.usage import available
from osworld_gym.errors import DesktopError, FailureReason

POLL = 0.1  # seconds between two checks of the machine; memory and load have no event to wait for
CROWD = 6  # runnable processes per core above which only one desktop starts at a time


@dataclass(slots=True)
class Waiting:
    """A start that waits for its turn."""

    need: int  # bytes
    until: float


class Admission:
    """Allows up to ``parallel`` simultaneous starts, only one if the machine is busy, none while memory is short.

    Args:
        parallel: simultaneous starts; None: one for each core that this process may use.
        reserve: MiB of memory that must stay available in addition to what a start requires.
        deadline: seconds that a start may wait for its turn.
        free: returns the available memory in bytes; for tests.
        running: returns the number of runnable processes on this machine; for tests.

    Raises:
        ValueError: ``parallel`` is below 1.
    """

    def __init__(
        self,
        parallel: int | None = None,
        reserve: int = 512,
        deadline: float = 300.0,
        free: Callable[[], int] = available,
        running: Callable[[], int] | None = None,
    ) -> None:
        self._cores = len(os.sched_getaffinity(0))
        self.parallel = self._cores if parallel is None else parallel
        if self.parallel < 1:
            raise ValueError(f"parallel: expected at least 1, got {parallel}")
        self._reserve, self._deadline, self._free = reserve << 20, deadline, free
        self._running = runnable if running is None else running
        self._changed = threading.Condition()
        self._queue: list[Waiting] = []  # first come, first served
        self.starting = 0  #: number of running starts

    @contextmanager
    def start(self, need: int) -> Iterator[None]:
        """Waits for a turn, which lasts as long as the ``with`` block.

        Args:
            need: MiB of memory that the running desktop requires.

        Raises:
            DesktopError: ``never_ready`` at the deadline; the message states what was short.
        """
        waiting = Waiting(need << 20, monotonic() + self._deadline)
        with self._changed:
            self._queue.append(waiting)
            try:
                while (short := self._short(waiting)) is not None:
                    if monotonic() >= waiting.until:
                        raise DesktopError(FailureReason.never_ready, f"waited {self._deadline:g} s to start: {short}")
                    self._changed.wait(POLL)
                self.starting += 1
            finally:
                self._queue.remove(waiting)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self.starting -= 1
                self._changed.notify_all()

    def _short(self, waiting: Waiting) -> str | None:
        """The reason why this start must wait; None if it may start."""
        if self._queue[0] is not waiting:
            return f"{len(self._queue)} starts are waiting, {self.starting} are under way"
        if self.starting >= self.parallel:
            return f"{self.starting} desktops are starting already"
        free = self._free() - self.starting * waiting.need
        if free < waiting.need + self._reserve:
            wanted = (waiting.need + self._reserve) >> 20
            return f"{free >> 20} MiB of memory are available, {wanted} MiB are required"
        if self.starting and self._running() > CROWD * self._cores:
            return f"{self._running()} processes want to run on {self._cores} cores"
        return None


def runnable() -> int:
    """Number of processes and threads on this machine that run or wait for a core."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[0])


#: shared by all local desktops of this process
ADMISSION = Admission()
