"""A queue that can be lost as an actor's process is: calls are sent again to the one that is started in its place."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from bepa_torchrl.scale.rollouts.restorable_queue import RestorableQueue

WAITS = ("lease", "next_group", "evaluation_ready")  # up to the seconds that are their last argument


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class LostQueue:
    """The queue's methods, whose arguments and answers are copies, as between processes.

    Args:
        clock: of this process; those of the queue's processes are shifted, each differently. None: the system's.
        options: of the queue.
    """

    def __init__(self, clock: Clock | None = None, **options: Any) -> None:
        self._clock, self._options = clock, options
        self.started = 0
        self.lost_answers: set[str] = (
            set()
        )  #: methods whose next call is made, but the process is lost before it answers
        self.sent_twice: set[str] = set()  #: methods whose calls come a second time
        self.lost_at: set[int] = set()  #: numbers of the results with which the process is lost
        self.results = 0
        self.kill()

    def kill(self) -> None:
        """The process is lost with all that it has; another one is started."""
        self.started += 1
        clock, shift = self._clock, 1000.0 * self.started
        clocks: dict[str, Any] = {} if clock is None else {"clock": lambda: clock() + shift}
        self.queue = RestorableQueue(**self._options, **clocks)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            if name == "complete":
                self.results += 1
                if self.results in self.lost_at:
                    self.kill()
            if name in self.lost_answers:
                self.lost_answers.discard(name)
                getattr(self.queue, name)(*copy.deepcopy(args))
                self.kill()
            elif name in self.sent_twice:
                getattr(self.queue, name)(*copy.deepcopy(args))
            return copy.deepcopy(self._answer(name, copy.deepcopy(args)))

        return call

    def _answer(self, name: str, args: tuple[Any, ...]) -> Any:
        """The answer of a process that was not lost before it gave it; a call that waits is sent again at once."""
        end = time.monotonic() + (args[-1] if name in WAITS else 0.0)
        while True:
            queue, left = self.queue, max(0.0, end - time.monotonic())
            call = (*args[:-1], min(left, 0.05)) if name in WAITS else args
            answer = getattr(queue, name)(*call)
            if queue is self.queue and (answer or not left or name not in WAITS):
                return answer
