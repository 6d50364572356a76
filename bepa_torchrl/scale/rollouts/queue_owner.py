"""QueueOwner: the trainer's side of a queue in another process, which gets its state back when it is started again.

The state is here, in the process that trains: it alone admits, takes and drops groups, so that it knows what the queue
must have without asking, on whichever node the queue is started again; and the run ends with this process anyway. A
journal would need a disk that all nodes share, and a copy of the results of the groups that wait for the trainer costs
as much as their way to the trainer. They are lost, and played again. What else the queue knows (leases, outcomes of
evaluations, workers, counts) is small, and is asked for every second; what has changed since is at worst played again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from bepa_torchrl.scale.rollouts.queue_state import FinishedGroup, OwnedState, QueueMemory
from bepa_torchrl.scale.rollouts.restorable_queue import LostStateError
from bepa_torchrl.scale.rollouts.task_queue import TaskQueue
from osworld_gym.errors import DesktopError

_log = logging.getLogger(__name__)
_CHECK_EVERY = 1.0  #: seconds between two questions for the queue's memory
_STOP_SECONDS = 5.0  #: for the one that is under way


class QueueOwner:
    """The queue as the trainer uses it; calls wait while it is started again.

    Every change is made once: it has a number, which the queue does not take twice, and a queue that was lost is given
    the state before the change. Attributes that are not listed here are the queue's methods for workers
    (:class:`~bepa_torchrl.scale.rollouts.env_worker.QueueClient`).

    Args:
        queue: has the methods of a :class:`~bepa_torchrl.scale.rollouts.restorable_queue.RestorableQueue`, each with a
            deadline, also while it is started again; after that, or if it is gone for good, they raise DesktopError.
        check_every: seconds between two checks of the queue.
        options: arguments of the :class:`~bepa_torchrl.scale.rollouts.task_queue.TaskQueue`, the same as the queue's.

    Raises:
        ValueError: an option is out of range.
    """

    def __init__(self, queue: Any, *, check_every: float = _CHECK_EVERY, **options: Any) -> None:
        self._queue = queue
        self._admitted = TaskQueue(**options)  # without workers: only what was admitted and not taken
        self._memory = QueueMemory()
        self._shown: FinishedGroup | None = None  # neither taken nor dropped yet
        self._rollouts_ended = False
        self._generation = self._applied = 0
        self.restarts = 0
        self._lock = threading.Lock()  # held by who changes the queue, or gives it its state
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(check_every,), name="health of queue", daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        method: Callable[..., Any] = getattr(self._queue, name)
        return method

    def stop(self) -> None:
        """Asks the queue no more."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    # --- what only the trainer calls ----------------------------------------------------------------------------

    def capacity_left(self) -> int:
        """Groups that may be admitted now."""
        return self._admitted.capacity_left()

    def admit(self, task: Any, size: int) -> int:
        """Adds a group and returns its number. Raises as ``TaskQueue.admit``."""
        return int(self._change("admit", task, size))

    def admit_evaluation(self, task: Any, size: int) -> int:
        """Adds an evaluation and returns its number. Raises as ``TaskQueue.admit_evaluation``."""
        return int(self._change("admit_evaluation", task, size))

    def end_rollouts(self) -> None:
        """No more rollouts are leased."""
        self._change("end_rollouts")

    def trained(self) -> None:
        """A batch was trained."""
        self._change("trained")

    def take(self, group: int) -> None:
        """Removes a finished group, to be trained. Raises ValueError if it is not finished, or was taken."""
        self._change("take", group)

    def drop(self, group: int) -> None:
        """Removes a finished group that cannot be trained. Raises as :meth:`take`."""
        self._change("drop", group)

    def next_group(self, timeout: float) -> FinishedGroup | None:
        """Waits up to ``timeout`` seconds for the next group; the caller takes or drops it."""
        if self._shown is None:
            asked = self._generation
            group: FinishedGroup | None = self._queue.next_group(timeout)
            with self._lock:
                if self._generation == asked:  # else it may be one that is played again
                    self._shown = group
        return self._shown

    def next_evaluation(self, timeout: float) -> FinishedGroup | None:
        """Waits up to ``timeout`` seconds for a finished evaluation, and removes it."""
        if not self._queue.evaluation_ready(timeout):
            return None
        evaluation: FinishedGroup | None = self._change("take_evaluation")
        return evaluation

    def finished_groups(self) -> int:
        """Groups that were finished since the queue was started last."""
        return int(self._queue.finished_groups())

    def describe(self) -> dict[str, Any]:
        """The queue's description, and ``restarts``."""
        return {**self._queue.describe(), "restarts": self.restarts}

    def state_dict(self) -> dict[str, Any]:
        """The state, as of ``TaskQueue.state_dict``."""
        state: dict[str, Any] = self._queue.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a ``state_dict``. Raises ValueError: as ``TaskQueue.load_state_dict``."""
        with self._lock:
            self._admitted.load_state_dict(state)
            self._memory, self._shown = QueueMemory(), None
            self._generation = max(self._generation, int(state["generation"]))
            self._restore()

    # ------------------------------------------------------------------------------------------------------------

    def _change(self, change: str, *args: Any) -> Any:
        """Makes a change here and in the queue, which first gets its state if it has none."""
        with self._lock:
            while True:
                try:
                    answer = self._queue.apply(self._generation, self._applied + 1, change, *args)
                    break
                except LostStateError:
                    self._give_state()
                except DesktopError:
                    self._generation += 1  # whether it was made is not known: the next one gives the state first
                    raise
            self._applied += 1
            self._note(change, args, answer)
            return answer

    def _note(self, change: str, args: tuple[Any, ...], answer: Any) -> None:
        """The same change here, where nothing is played."""
        if change in ("take", "drop"):
            self._admitted.close(*args)
            if self._shown is not None and self._shown.group == args[0]:
                self._shown = None
        elif change == "take_evaluation":
            if answer is None:
                return
            self._admitted.close(answer.group, evaluation=True)
        elif change == "end_rollouts":
            self._rollouts_ended = True
        getattr(self._admitted, change)(*args)

    def _give_state(self) -> None:
        if self._generation:
            self.restarts += 1
            _log.warning("the queue was started again: results that the trainer had not got yet are played again")
        self._restore()

    def _restore(self) -> None:
        self._generation += 1
        shown = None if self._shown is None else self._shown.group
        state = self._admitted.state_dict()
        self._queue.restore(
            OwnedState(self._generation, state, self._memory, shown, self._rollouts_ended, self._applied)
        )

    # --- the thread that watches --------------------------------------------------------------------------------

    def _watch(self, check_every: float) -> None:
        last = None
        while not self._stopping.wait(check_every):
            try:
                self._check()
                last = None
            except DesktopError as error:  # the trainer's next call raises it
                if str(error) != last and not self._stopping.is_set():
                    _log.warning("health of queue: %s", error)
                last = str(error)
            except Exception:  # noqa: BLE001  without this thread a queue that starts again would wait for the trainer
                _log.exception("health of queue")

    def _check(self) -> None:
        """Gives the queue its state if it has none, and else remembers what it knows."""
        known = self._generation
        generation, memory = self._queue.memory()
        with self._lock:
            if known != self._generation or self._stopping.is_set():
                return  # it was given its state meanwhile
            if generation == 0:
                self._give_state()
            elif generation == known:
                self._memory = memory
