"""QueueService: a TaskQueue for many threads; callers wait for slots and groups by events, always with a deadline.

The class is also the Ray actor: its methods take and return values that can be sent between processes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from bepa_torchrl.scale.rollouts.queue_state import DesktopDemand
from bepa_torchrl.scale.rollouts.task_queue import FinishedGroup, Lease, TaskQueue

Result = TypeVar("Result")
MAX_WORKERS = 200  #: that one queue serves, with any number of desktops each: each has one call that waits for leases
_EXPIRY = 0.5  #: seconds between two checks for expired leases while somebody waits


class _ReleasedError(Exception):
    """The worker that waits for leases was released."""


class QueueService:
    """The methods of :class:`~bepa_torchrl.scale.rollouts.task_queue.TaskQueue`, thread-safe.

    Args:
        options: arguments of the TaskQueue.
    """

    def __init__(self, **options: Any) -> None:
        self._queue = TaskQueue(**options)
        self._lock = threading.Lock()
        self._slots, self._groups, self._evaluations = (threading.Condition(self._lock) for _ in range(3))
        self._held_up, self._held_up_since = 0.0, dict[int, float]()  # of the threads that wait for the trainer
        self._released = Counter[str]()  # how often each worker was

    def lease(self, worker: str, limit: int, timeout: float) -> list[Lease]:
        """Waits up to ``timeout`` seconds for a slot; empty if none was free.

        So it is, at once, if the worker is released meanwhile: the call of one that has exited goes on here, and what
        it got would be nobody's until it expires.
        """
        released = self._released[worker]

        def act() -> list[Lease]:
            if self._released[worker] != released:
                raise _ReleasedError
            return self._queue.lease(worker, limit)

        try:
            return self._wait(self._slots, act, timeout) or []
        except _ReleasedError:
            return []

    def next_group(self, timeout: float) -> FinishedGroup | None:
        """Waits up to ``timeout`` seconds for the next group; the caller takes or drops it."""
        return self._wait_as_trainer(self._groups, self._queue.finished, timeout)

    def finished_groups(self) -> int:
        """Groups that were finished so far, in whatever order."""
        return self._do(lambda: self._queue.events.groups)

    def capacity_left(self) -> int:
        return self._do(self._queue.capacity_left)

    def admit(self, task: Any, size: int) -> int:
        return self._do(lambda: self._queue.admit(task, size))

    def admit_evaluation(self, task: Any, size: int) -> int:
        return self._do(lambda: self._queue.admit_evaluation(task, size))

    def next_evaluation(self, timeout: float) -> FinishedGroup | None:
        """Waits up to ``timeout`` seconds for a finished evaluation, and removes it."""
        return self._wait_as_trainer(self._evaluations, self._queue.take_evaluation, timeout)

    def end_rollouts(self) -> None:
        self._do(self._queue.end_rollouts)

    def renew(self, tickets: list[str]) -> list[str]:
        """Extends leases; returns the tickets whose lease has ended."""
        return self._do(lambda: self._queue.renew_all(tickets))

    def leased(self, ticket: str) -> Lease:
        return self._do(lambda: self._queue.leased(ticket))

    def complete(self, ticket: str, result: Any) -> None:
        self._do(lambda: self._queue.complete(ticket, result))

    def fail(self, ticket: str, reason: str, result: Any = None) -> None:
        self._do(lambda: self._queue.fail(ticket, reason, result))

    def release(self, worker: str, reason: str) -> int:
        """Ends all leases of a worker that has exited, and its calls that wait; returns how many leases."""

        def act() -> int:
            self._released[worker] += 1
            self._slots.notify_all()
            return self._queue.release(worker, reason)

        return self._do(act)

    def resize(self, worker: str, desktops: int) -> None:
        self._do(lambda: self._queue.resize(worker, desktops))

    def demand(self) -> DesktopDemand:
        """What desktops are needed for, and how long the trainer has waited."""
        return self._do(lambda: self._queue.demand(self._held_up_seconds()))

    def take(self, group: int) -> None:
        self._do(lambda: self._queue.take(group))

    def drop(self, group: int) -> None:
        self._do(lambda: self._queue.drop(group))

    def trained(self) -> None:
        self._do(self._queue.trained)

    def describe(self) -> dict[str, Any]:
        return self._do(self._queue.describe)

    def state_dict(self) -> dict[str, Any]:
        return self._do(self._queue.state_dict)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._do(lambda: self._queue.load_state_dict(state))

    def _held_up_seconds(self) -> float:
        now = time.monotonic()
        return self._held_up + sum(max(0.0, now - since) for since in self._held_up_since.values())

    def _do(self, action: Callable[[], Result]) -> Result:
        with self._lock:
            return self._act(action)

    def _act(self, action: Callable[[], Result]) -> Result:
        """Acts, and wakes those for whom something has become available: a slot wakes one worker."""
        before = self._queue.events
        try:
            return action()
        finally:
            now = self._queue.events
            self._slots.notify(now.slots - before.slots)
            if now.groups > before.groups:
                self._groups.notify_all()
            if now.evaluations > before.evaluations:
                self._evaluations.notify_all()

    def _wait_as_trainer(self, condition: threading.Condition, action: Callable[[], Result], timeout: float) -> Result:
        """As :meth:`_wait`, and counts the time."""
        thread, start = threading.get_ident(), time.monotonic()
        with self._lock:
            self._held_up_since[thread] = start
        try:
            return self._wait(condition, action, timeout)
        finally:
            with self._lock:
                del self._held_up_since[thread]
                self._held_up += time.monotonic() - start

    def _wait(self, condition: threading.Condition, action: Callable[[], Result], timeout: float) -> Result:
        """The action's first true result; at the deadline its last one. Leases expire meanwhile."""
        end = time.monotonic() + timeout
        with self._lock:
            while not (result := self._act(action)) and (left := end - time.monotonic()) > 0:
                condition.wait(min(left, _EXPIRY))
            return result
