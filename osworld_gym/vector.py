"""Many desktops in parallel: send a response to each, receive the results that are ready; a slow one delays no other.

A blocking desktop runs on a separate thread; a non-blocking one (the simulated desktop) runs inside ``send``.
``OSWorldEnv``, the Gymnasium environment and the group collector use :class:`DesktopVector`, which uses ``Episode``.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Real
from time import monotonic
from types import TracebackType
from typing import NoReturn

from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.pool import WarmPool
from osworld_gym.episode import EpisodeOptions, failed, options_or_default
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.task import Task
from osworld_gym.types import StepResult, StopReason
from osworld_gym.vector_worker import Call, DesktopWorker, Make, Outcome, ThreadedWorker, broken

logger = logging.getLogger(__name__)

CLOSE_DEADLINE = 10.0  #: seconds that close() waits for the desktops to exit
CLOSED = "closed: create a new environment"
BUSY = "busy: receive its result first; an environment whose step was interrupted: call reset() first"


@dataclass(slots=True)
class Slot:
    """The state of one desktop: its worker, the deadline of the pending call, whether an episode is running."""

    worker: DesktopWorker
    deadline: float | None = None  #: monotonic time in seconds at which the pending call is given up; None: idle
    sent: float = 0.0  #: monotonic time in seconds of the pending call's start
    running: bool = False


#: seconds for one call on a desktop: longer than one evaluation (``tasks.evaluation.verify``)
CALL_DEADLINE = 240.0


def _check_seconds(deadline: object) -> None:
    if isinstance(deadline, bool) or not isinstance(deadline, Real):
        raise TypeError(f"DesktopVector: deadline must be a number of seconds, got {deadline!r}")


class DesktopVector:
    """``num`` desktops, each running its own episode. Used by one thread, except :meth:`wake` and :meth:`close`.

    Args:
        make: creates one desktop. Called here once, for desktop 0; the others are created at their first reset, on
            their own threads, and whenever one is replaced.
        num: the number of desktops.
        options: options of every episode.
        deadline: seconds for one call (reset with setup, step with verification). If a blocking desktop exceeds it, the
            result is ``env_error`` with ``hung``, and its thread and desktop are replaced. A reset has
            ``Desktop.reset_limit`` in addition, so that a desktop that is not ready in time says so itself. Calls of
            non-blocking desktops run in the caller's thread and have no deadline.
        warm: number of blocking desktops kept ready in addition to ``num``, reset in advance (:class:`WarmPool`).

    Raises:
        ValueError: ``num``, ``deadline`` or ``warm`` is out of range.
        TypeError: ``options`` are something else, ``deadline`` is no number, or ``make`` returned no desktop.
        DesktopError: the first desktop cannot be created.
    """

    def __init__(
        self,
        make: Make,
        num: int,
        options: EpisodeOptions | None = None,
        *,
        deadline: float = CALL_DEADLINE,
        warm: int = 0,
    ) -> None:
        _check_seconds(deadline)
        if num < 1 or not deadline > 0 or warm < 0:
            raise ValueError(
                f"DesktopVector requires num >= 1, deadline > 0 s, warm >= 0, got {num}, {deadline}, {warm}"
            )
        self.options = options_or_default(options)
        self.failures: Counter[FailureReason] = Counter()  #: results that were ``env_error``, by reason
        self.busy_seconds = 0.0  #: seconds of all finished calls, summed over desktops
        self.pool = WarmPool(make, warm, deadline=0.9 * deadline) if warm else None
        self._make: Make = self.pool.desktop if self.pool is not None else make
        self._deadline = deadline
        self._changed = threading.Condition()
        self._outcomes: deque[tuple[int, Outcome]] = deque()
        self._woken = False
        #: is given each screenshot of a running episode by the blocking desktop's own thread, before it is received;
        #: what it raises is logged
        self.on_screenshot: Callable[[bytes], None] | None = None
        self._closers: list[threading.Thread] = []
        self._closed = False
        self._process = os.getpid()
        first = self._make()
        if not isinstance(first, Desktop):
            raise TypeError(
                f"expected a provider that returns a Desktop, got {first!r:.80}; return it from the function, and "
                "derive its class from osworld_gym.desktops.base.Desktop"
            )
        self.screen_size = first.screen_size  #: (width, height) in pixels, the same for all desktops
        self.blocking, self._reset_limit = first.blocking, first.reset_limit
        self._slots = [Slot(self._worker(i, first if i == 0 else None)) for i in range(num)]
        if self.blocking:
            atexit.register(self.close)  # a forgotten close must leave no processes behind

    def __len__(self) -> int:
        return len(self._slots)

    def send_reset(self, i: int, task: Task, seed: int) -> None:
        """Starts an episode on desktop ``i``; a running episode there is dropped without a verdict.

        Raises:
            RuntimeError: the desktop's previous result has not been received, or the vector is closed.
        """
        self._send(i, lambda episode: episode.begin(task, seed), self._reset_limit)

    def send(self, i: int, text: str) -> None:
        """Sends one response of the policy to desktop ``i``.

        Raises:
            RuntimeError: no episode is running there, or its previous result has not been received.
        """
        self._check_running(i)
        self._send(i, lambda episode: episode.act(text))

    def send_end(self, i: int, stop: StopReason) -> None:
        """Ends and verifies the episode of desktop ``i`` between two responses, e.g. with ``context_full``."""
        self._check_running(i)
        self._send(i, lambda episode: episode.end(stop))

    def receive(self, min_count: int = 1, timeout: float | None = None) -> list[tuple[int, StepResult]]:
        """Waits for ``min_count`` results (or for all pending ones, if fewer) and returns every result that is ready.

        After :meth:`wake` it waits for none.

        Args:
            min_count: number of results to wait for.
            timeout: longest wait in seconds, after which fewer results may be returned. None: no limit.

        Returns:
            pairs (desktop number, result) in order of arrival.

        Raises:
            TaskError: the task sent to a desktop is invalid. Results of the others are kept for the next call.
            RuntimeError: the vector was closed, and too few of the results had arrived.
        """
        until = None if timeout is None else monotonic() + timeout
        with self._changed:
            while not self._woken and len(self._outcomes) < min(min_count, self._under_way()):
                if self._closed:
                    raise RuntimeError(CLOSED)
                now = monotonic()
                if until is not None and now >= until:
                    break
                if not self._give_up_hung(now):
                    self._changed.wait(self._next_event(until, now))
            self._woken = False
            return self._take()

    def wake(self) -> None:
        """Lets a :meth:`receive` that waits, or the next one, return with what is ready. Any thread may call it."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def drain(self) -> None:
        """Waits for every pending call and drops its result. Call it after an exception, before the next resets.

        Raises:
            RuntimeError: the vector was closed during a call.
        """
        while self._under_way():
            try:
                self.receive(len(self))
            except TaskError as error:
                logger.warning("dropped: %s", error)

    def close(self) -> None:
        """Closes every desktop, hung ones from another thread, and waits up to ``CLOSE_DEADLINE`` seconds for them.

        Any thread may call it; a :meth:`receive` that waits then raises. May be called twice.
        """
        if self.blocking and os.getpid() != self._process:
            return  # a forked process: the desktops are its parent's
        with self._changed:
            if self._closed:
                return
            self._closed = True
            atexit.unregister(self.close)
            for slot in self._slots:
                self._close_slot(slot)
            self._changed.notify_all()
        until = monotonic() + CLOSE_DEADLINE
        for thread in self._closers:
            thread.join(max(0.0, until - monotonic()))
        if self.pool is not None:
            self.pool.close()

    def close_with(self, environment: object) -> None:
        """Closes blocking desktops once nothing refers to their ``environment`` any more, as in a notebook's next run.

        They are closed by another thread: the last reference may be dropped by one that holds a lock of theirs.
        """
        if self.blocking:
            weakref.finalize(environment, _thread.start_new_thread, self.close, ()).atexit = False

    def __enter__(self) -> DesktopVector:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "desktops cannot be copied or pickled; fix: give a worker the function that creates its environment, as "
            'lambda: OSWorldEnv("sim"); for another environment, create one'
        )

    def _worker(self, i: int, desktop: Desktop | None) -> DesktopWorker:
        if not self.blocking:
            return DesktopWorker(self._make, self.options, self.screen_size, desktop)
        name = f"desktop-{i}"
        return ThreadedWorker(
            self._make, self.options, self.screen_size, desktop, lambda worker, out: self._post(i, worker, out), name
        )

    def _send(self, i: int, call: Call, more: float = 0.0) -> None:
        """Starts a call, which may take ``more`` seconds than the deadline."""
        slot = self._slots[i]
        if self._closed or slot.deadline is not None:
            raise RuntimeError(f"desktop {i}: {CLOSED if self._closed else BUSY}")
        slot.sent = monotonic()
        if isinstance(slot.worker, ThreadedWorker):
            if os.getpid() != self._process:  # a fork has none of the threads
                raise RuntimeError(
                    f"desktop {i} belongs to the process that created it; fix: create the environment after the fork"
                )
            slot.deadline = slot.sent + self._deadline + more
            slot.worker.submit(call)
            return
        slot.running = False  # an interrupted call leaves no running episode behind
        outcome = slot.worker.run(call)
        if broken(outcome):
            slot.worker.discard()
        slot.deadline = inf
        self._finished(i, outcome)

    def _post(self, i: int, worker: DesktopWorker, outcome: Outcome) -> None:
        if (show := self.on_screenshot) is not None and isinstance(outcome, StepResult) and not outcome.done:
            try:
                show(outcome.screenshot.png)
            except Exception:  # the result must arrive: its receiver may wait without a limit
                logger.exception("on_screenshot raised; the result of desktop %d is delivered all the same", i)
        with self._changed:
            if self._slots[i].worker is worker:
                self._finished(i, outcome)
                self._changed.notify_all()

    def _finished(self, i: int, outcome: Outcome) -> None:
        self.busy_seconds += monotonic() - self._slots[i].sent
        self._outcomes.append((i, outcome))

    def _check_running(self, i: int) -> None:
        if not self._slots[i].running:
            problem = CLOSED if self._closed else "no episode is running: call reset() first"
            raise RuntimeError(f"desktop {i}: {problem}")

    def _under_way(self) -> int:
        return sum(slot.deadline is not None for slot in self._slots)

    def _next_event(self, until: float | None, now: float) -> float:
        ready = {i for i, _ in self._outcomes}
        ends = [s.deadline for i, s in enumerate(self._slots) if s.deadline is not None and i not in ready]
        return max(0.0, min([*ends, *([] if until is None else [until])]) - now)

    def _give_up_hung(self, now: float) -> bool:
        """Replaces the workers whose call has exceeded its deadline; returns whether there was one."""
        ready = {i for i, _ in self._outcomes}
        hung = [i for i, s in enumerate(self._slots) if i not in ready and s.deadline is not None and s.deadline <= now]
        for i in hung:
            slot = self._slots[i]
            assert isinstance(slot.worker, ThreadedWorker)
            assert slot.deadline is not None
            self._closers.append(slot.worker.abandon())
            error = DesktopError(FailureReason.hung, f"desktop {i}: no answer within {slot.deadline - slot.sent:g} s")
            self._finished(i, failed(slot.worker.frame, error))
            slot.worker = self._worker(i, None)
        self._closers = [thread for thread in self._closers if thread.is_alive()]
        return bool(hung)

    def _take(self) -> list[tuple[int, StepResult]]:
        results: list[tuple[int, StepResult]] = []
        for _ in range(len(self._outcomes)):
            i, outcome = self._outcomes[0]
            if isinstance(outcome, TaskError) and results:
                break
            self._outcomes.popleft()
            slot = self._slots[i]
            slot.deadline = None
            slot.running = isinstance(outcome, StepResult) and outcome.stop is None
            if isinstance(outcome, TaskError):
                raise outcome
            if outcome.failure is not None:
                self.failures[outcome.failure] += 1
            results.append((i, outcome))
        return results

    def _close_slot(self, slot: Slot) -> None:
        if not isinstance(slot.worker, ThreadedWorker):
            slot.worker.discard()
        elif slot.deadline is None:
            slot.worker.finish()
            self._closers.append(slot.worker.thread)
        else:
            self._closers.append(slot.worker.abandon())
