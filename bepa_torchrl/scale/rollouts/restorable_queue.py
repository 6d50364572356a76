"""RestorableQueue: a queue in a process of its own. One that is started again has its state from its owner.

The owner (:class:`~bepa_torchrl.scale.rollouts.queue_owner.QueueOwner`) is the process that trains.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.queue_state import OwnedState, QueueMemory

Result = TypeVar("Result")
#: methods of the TaskQueue that only the owner calls, and that change what it must know
CHANGES = ("admit", "admit_evaluation", "end_rollouts", "take", "take_evaluation", "drop", "trained")
_STATE_SECONDS = 45.0  #: that a call waits for the state


class LostStateError(ConnectionError):
    """The queue was started again and has no state yet, or another one than the caller knows: of the infrastructure."""


class RestorableQueue(QueueService):
    """A QueueService that begins without a state: whoever calls waits until :meth:`restore` was called.

    Only one thread at a time may call :meth:`restore` and :meth:`apply`; each of them may be sent again after a lost
    answer.

    Args:
        options: arguments of the :class:`~bepa_torchrl.scale.rollouts.task_queue.TaskQueue`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._has_state = threading.Event()
        self._applied: tuple[int, Any] = (0, None)  # the last change's number and answer

    def restore(self, owned: OwnedState) -> None:
        """Begins with a state, in the place of what there was. Raises ValueError as ``TaskQueue.load_state_dict``."""

        def act() -> None:
            if self._queue.generation >= owned.generation:
                return  # the same call again
            self._queue.load_state_dict({**owned.state, "generation": owned.generation - 1})
            if owned.shown is not None:
                self._queue.close(owned.shown)
            self._queue.recall(owned.memory)
            if owned.rollouts_ended:
                self._queue.end_rollouts()
            self._held_up = owned.memory.held_up_seconds
            self._applied = (owned.applied, None)

        super()._do(act)
        self._has_state.set()

    def apply(self, generation: int, number: int, change: str, *args: Any) -> Any:
        """Makes a change once, also if it is sent again; returns its answer.

        Args:
            generation: of the state that the caller knows.
            number: of the change, one more than the last one's.
            change: one of :data:`CHANGES`.
            args: its arguments.

        Raises:
            LostStateError: the queue has another state; nothing was changed. Or as the change; then it was not made.
        """
        if change not in CHANGES:
            raise ValueError(f"change must be one of {', '.join(CHANGES)}, got {change!r}")

        def act() -> Any:
            if not self._has_state.is_set() or self._queue.generation != generation:
                raise LostStateError(f"the queue was started again: it has not the state {generation} of its owner")
            if self._applied[0] != number:
                self._applied = (number, getattr(self._queue, change)(*args))
            return self._applied[1]

        return super()._do(act)

    def memory(self) -> tuple[int, QueueMemory]:
        """The generation, and what is to be known if this process is lost now; 0 without a state."""

        def act() -> tuple[int, QueueMemory]:
            memory = replace(self._queue.memory(), held_up_seconds=self._held_up_seconds())
            return (self._queue.generation if self._has_state.is_set() else 0), memory

        return super()._do(act)

    def evaluation_ready(self, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds for a finished evaluation."""
        return bool(self._wait_as_trainer(self._evaluations, self._queue.evaluation_is_finished, timeout))

    def _do(self, action: Callable[[], Result]) -> Result:
        if not self._has_state.wait(_STATE_SECONDS):
            raise LostStateError(
                f"the queue was started again and got no state in {_STATE_SECONDS:g} s; has the trainer ended?"
            )
        return super()._do(action)

    def _wait(self, condition: threading.Condition, action: Callable[[], Result], timeout: float) -> Result:
        if not self._has_state.wait(timeout):
            return cast(Result, None)  # nothing is leased, and nothing is finished
        return super()._wait(condition, action, timeout)
