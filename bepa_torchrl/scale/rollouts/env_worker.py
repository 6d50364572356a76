"""EnvWorker: desktops of one node that play episodes leased from the queue, one thread per desktop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import Any, NamedTuple, Protocol

import torch

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.group_collector import RolloutSeeds
from bepa_torchrl.rollout.replay import Prefix
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan, episode_outcome
from bepa_torchrl.scale.rollouts.rollout_service import RolloutClient, ServedSampler
from bepa_torchrl.scale.rollouts.routing import ServiceRouter
from bepa_torchrl.scale.rollouts.task_queue import Lease, StaleTicketError
from bepa_torchrl.scale.rollouts.thread_dump import waiting_threads
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason
from osworld_gym.vector import DesktopVector

_log = logging.getLogger(__name__)
_MAX_STARTS = 4  #: attempts in a row to make a desktop, until it counts as missing; it is tried again nevertheless
_PAUSE = 5.0  #: seconds after the first failed attempt, twice as much after each further one
_AFTER_ERROR = 1.0  #: the same after an episode that could not be played
_DOUBLINGS = 3  #: after which pauses stay as long as they are
_ATTEMPTS = 4  #: to reach the queue with a result
_RETRY_PAUSE = 1.0  #: seconds after the first of them, twice as much after each further one
_LOOK_AGAIN = 60.0  #: seconds, at a desktop that is closed: whether it is needed
_SICK_TASKS = 3  #: different tasks that fail in a row, on all desktops, until they are blamed and not the tasks


class _Closes:
    """In the place of a lease: the desktop that gets it is closed."""


class QueueClient(Protocol):
    """How a worker reaches the queue (:class:`bepa_torchrl.scale.rollouts.queue_service.QueueService`)."""

    def lease(self, worker: str, limit: int, timeout: float) -> list[Lease]: ...
    def renew(self, tickets: list[str]) -> list[str]: ...
    def complete(self, ticket: str, result: Any) -> None: ...
    def fail(self, ticket: str, reason: str, result: Any = None) -> None: ...


class WorkerState(NamedTuple):
    """The answer to a health check.

    Args:
        alive: desktops that play, or will soon; 0 if the worker can do nothing any more.
        problem: why the last desktop could not be made, if so.
        played: episodes so far that did not fail because of the infrastructure.
        sick: why its desktops are to blame for failed episodes; None: they are not.
        desktops: that it has: those that play, wait for a lease, or are being made.
        moved: turns so far that another rollout service answered than the episode's turn before.
    """

    alive: int
    problem: str | None
    played: int
    sick: str | None
    desktops: int
    moved: int = 0


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a worker must know to play a lease.

    Args:
        tasks: the training tasks, in the trainer's order.
        seeds: the seeds of the run.
        temperature: sampling temperature.
        retries: further attempts for an episode whose desktop failed.
        evaluation: the episodes of evaluations; None: there are none.
    """

    tasks: tuple[Task, ...]
    seeds: RolloutSeeds
    temperature: float
    retries: int
    evaluation: EvaluationPlan | None = None

    def job(self, group: int, slot: int, task: Sequence[Any]) -> EpisodeJob:
        """The job of a slot.

        Args:
            group: its number.
            slot: in the group.
            task: (task number, number of the admission), as admitted to the queue; and what is replayed first, if
                anything, as JSON values.
        """
        number, admission, *prefixes = task
        prefix = Prefix.from_json(prefixes[0]) if prefixes else None
        return self.seeds.job(self.tasks[number], number, admission, group, slot, prefix)


class EnvWorker:
    """Plays leased episodes until :meth:`stop`.

    Args:
        name: the name of this worker, unique in the run.
        queue: leases and results.
        service: the policy, or several of which one is chosen for each turn.
        plan: the run's tasks and seeds.
        make_vector: makes one desktop.
        desktops: number of threads.
        renew_every: seconds between renewals of the leases; a third of the queue's ``lease_seconds`` or less.
        poll: seconds that one request for a lease waits in the queue.
    """

    def __init__(
        self,
        name: str,
        queue: QueueClient,
        service: RolloutClient | ServiceRouter,
        plan: RolloutPlan,
        make_vector: Callable[[], DesktopVector],
        *,
        desktops: int,
        renew_every: float = 20.0,
        poll: float = 5.0,
    ) -> None:
        self.name, self._queue, self._service, self._plan = name, queue, service, plan
        self._make_vector, self._renew_every, self._poll = make_vector, renew_every, poll
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._lock, self._tickets = threading.Lock(), set[str]()
        self._resized = threading.Condition(self._lock)
        self._wanted = self._open = desktops
        self._closed = set[int]()  # the desktops
        self._leased: SimpleQueue[Lease | _Closes | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)  # desktops that wait for a lease
        self._problem: str | None = None
        self._failed_starts = [0] * desktops  # in a row, of each desktop
        self._failed_episodes = [0] * desktops
        self._failed_tasks: dict[str, str] = {}  # since an episode was played: task → why it failed
        self._played = 0
        self._players = [
            threading.Thread(target=self._play_all, args=(number,), name=f"{name}/{number}", daemon=True)
            for number in range(desktops)
        ]
        self._others = [
            threading.Thread(target=self._lease_all, name=f"{name}/leases", daemon=True),
            threading.Thread(target=self._renew_all, name=f"{name}/renewal", daemon=True),
        ]
        for thread in (*self._players, *self._others):
            thread.start()

    def alive(self) -> int:
        """Number of desktops that play, or will soon; 0 if no leases are taken or renewed any more."""
        if not all(thread.is_alive() for thread in self._others):
            return 0
        playing = zip(self._players, self._failed_starts, strict=True)
        return sum(thread.is_alive() and failed < _MAX_STARTS for thread, failed in playing)

    def state(self) -> WorkerState:
        """What a health check must know."""
        with self._lock:
            moved = self._service.moved if isinstance(self._service, ServiceRouter) else 0
            return WorkerState(self.alive(), self._problem, self._played, self._sick(), self._open, moved)

    def resize(self, desktops: int) -> None:
        """Closes desktops until there are so many, each after its episode, or makes them again; returns at once.

        Raises:
            ValueError: none, or more than there were at first.
        """
        if not 1 <= desktops <= len(self._players):
            raise ValueError(f"expected 1 to {len(self._players)} desktops, got {desktops}")
        with self._resized:
            self._wanted = desktops
            self._resized.notify_all()

    def check(self) -> None:
        """Raises DesktopError if no desktop is left, for a caller that has no other worker."""
        alive, problem, *_ = self.state()
        if not alive and not self._stopping.is_set():
            raise DesktopError(
                FailureReason.never_ready,
                f"no desktop is left: none of {len(self._players)} could be made in {_MAX_STARTS} attempts in a row "
                f"({problem}); see osworld-gym doctor, then go on with resume=true",
            )

    def _sick(self) -> str | None:
        """Why the desktops are to blame: as many different tasks have failed, and every desktop failed last."""
        enough = min(_SICK_TASKS, len(self._plan.tasks))
        here = [number for number in range(len(self._players)) if number not in self._closed]
        failed = (self._failed_episodes[number] or self._failed_starts[number] for number in here)
        if len(self._failed_tasks) < enough or not all(failed):
            return None
        task, problem = next(reversed(self._failed_tasks.items()))
        return f"{len(self._failed_tasks)} tasks in a row failed on all its desktops, the last one, {task}: {problem}"

    def describe(self) -> dict[str, Any]:
        """What this worker does and waits for, as JSON-compatible values."""
        state = self.state()
        with self._lock:
            leases = len(self._tickets)
        return {
            "playing_threads": state.alive,
            "desktops": state.desktops,
            "leases": leases,
            "problem": state.problem,
            "sick": state.sick,
            "threads": waiting_threads(),
        }

    def stop(self, timeout: float) -> None:
        """Ends after the episodes that are running, or after ``timeout`` seconds without them."""
        self._stopping.set()
        with self._resized:
            self._resized.notify_all()
        for _ in self._players:
            self._leased.put(None)
        self._idle.release()  # wakes the thread that leases
        players, (leases, renewal) = self._players, self._others
        end = monotonic() + timeout
        for thread in (*players, leases):
            thread.join(max(0.0, end - monotonic()))
        while not self._leased.empty():  # leases that came after the players had ended
            lease = self._leased.get()
            if isinstance(lease, Lease):
                self._give_back(lease, f"{self.name} has ended")
        self._ended.set()
        renewal.join(max(0.0, end - monotonic()))

    # --- leases -------------------------------------------------------------------------------------------------

    def _give_back(self, lease: Lease, reason: str, result: Any = None) -> None:
        """Ends a lease without a usable result."""
        self._report(lease.ticket, partial(self._queue.fail, lease.ticket, reason, result))

    def _report(self, ticket: str, call: Callable[[], None]) -> bool:
        """Tells the queue how a lease has ended; returns whether it knows.

        Without the queue's answer the call is repeated: it refuses what it has got already. In the end the lease is
        not renewed any more, so that it expires.
        """
        try:
            for attempt in range(_ATTEMPTS):
                try:
                    call()
                except StaleTicketError:  # another worker plays it, or the queue has got it before
                    return True
                except Exception:  # noqa: BLE001  whatever it is, the lease must not be renewed for ever
                    _log.exception("%s: the queue does not take the end of lease %s", self.name, ticket)
                    if attempt + 1 < _ATTEMPTS:
                        self._ended.wait(_pause(_RETRY_PAUSE, attempt + 1))
                else:
                    return True
            return False
        finally:
            with self._lock:
                self._tickets.discard(ticket)

    def _lease_all(self) -> None:
        """Leases for all idle desktops at once, so that a worker has one call at the queue, however many desktops."""
        failures = 0
        while not self._stopping.is_set():
            self._idle.acquire()
            idle = 1
            while self._idle.acquire(blocking=False):
                idle += 1
            if self._stopping.is_set():
                return
            idle -= self._close_some(idle)
            if not idle:
                continue
            leases: list[Lease] = []
            try:
                leases = self._queue.lease(self.name, idle, self._poll)
                failures = 0
            except Exception:  # noqa: BLE001  the pool replaces a worker whose queue is gone
                failures += 1
                _log.exception("%s: no leases, attempt %d in a row", self.name, failures)
                self._stopping.wait(_pause(_RETRY_PAUSE, failures))
            with self._lock:
                self._tickets.update(lease.ticket for lease in leases)
            for lease in leases:
                self._leased.put(lease)
            for _ in range(idle - len(leases)):
                self._idle.release()

    def _close_some(self, idle: int) -> int:
        """Closes as many of the idle desktops as there are too many; returns how many."""
        with self._lock:
            number = max(0, min(idle, self._open - self._wanted))
            self._open -= number
        for _ in range(number):
            self._leased.put(_Closes())
        return number

    def _renew_all(self) -> None:
        """Renews the leases of the running episodes, also of those that :meth:`stop` waits for."""
        while not self._ended.wait(self._renew_every):
            with self._lock:
                tickets = sorted(self._tickets)
            try:
                if tickets:
                    self._queue.renew(tickets)
            except Exception:  # noqa: BLE001  the next attempt may be in time
                _log.exception("%s: %d leases are not renewed, they are tried again", self.name, len(tickets))

    # --- desktops -----------------------------------------------------------------------------------------------

    def _play_all(self, number: int) -> None:
        """Plays on one vector after the other; what fails is tried again after a pause, which grows."""
        while not self._stopping.is_set():
            try:
                vector = self._make_vector()
            except Exception as error:  # noqa: BLE001  stated by state()
                self._problem = problem = f"{type(error).__name__}: {error}"
                self._failed_starts[number] = failures = self._failed_starts[number] + 1
                _log.warning("%s/%d: no desktop, attempt %d in a row: %s", self.name, number, failures, problem)
                self._stopping.wait(_pause(_PAUSE, failures))
                continue
            self._failed_starts[number], self._problem, needed = 0, None, True
            try:
                with closing(vector):
                    needed = self._play_on(number, vector)
            except Exception:  # noqa: BLE001  the next one is made nevertheless
                _log.exception("%s: a desktop could not be closed", self.name)
            if not needed:
                self._wait_closed(number)
            self._stopping.wait(_pause(_AFTER_ERROR, self._failed_episodes[number]))

    def _wait_closed(self, number: int) -> None:
        """Waits until more desktops are needed."""
        with self._resized:
            self._closed.add(number)
            while not self._stopping.is_set() and self._open >= self._wanted:
                self._resized.wait(_LOOK_AGAIN)
            self._closed.remove(number)
            self._open += 1

    def _play_on(self, number: int, vector: DesktopVector) -> bool:
        """Plays until the end, or until an episode that cannot be played; returns whether a new vector is needed."""
        while not self._stopping.is_set():
            self._idle.release()
            lease = self._leased.get()
            if not isinstance(lease, Lease):
                return lease is None
            try:
                result, task, failure = self._play(lease, vector)
            except Exception as error:  # noqa: BLE001  stated as the lease's reason
                self._failed_episodes[number] += 1
                self._give_back(lease, f"{self.name}: {type(error).__name__}: {error}")
                return True
            self._note(number, task, failure)
            if failure is not None:
                self._give_back(lease, f"{self.name}: {failure.value} in every attempt", result)
                return True
            if not self._report(lease.ticket, partial(self._queue.complete, lease.ticket, result)):
                self._give_back(lease, f"{self.name}: the queue did not take the result")
        return True

    def _note(self, number: int, task: str, failure: FailureReason | None) -> None:
        """Counts an episode, for :meth:`state`."""
        with self._lock:
            if failure is None:
                self._played += 1
                self._failed_episodes[number] = 0
                self._failed_tasks.clear()
            else:
                self._failed_episodes[number] += 1
                self._failed_tasks.pop(task, None)
                self._failed_tasks[task] = failure.value

    def _play(self, lease: Lease, vector: DesktopVector) -> tuple[Any, str, FailureReason | None]:
        """Plays one episode; its rows have the version of the weights of each turn. Of an evaluation: its outcome.

        Returns:
            The result, the task's id, and how the infrastructure failed in the last attempt, if so.
        """
        service, plan = self._service, self._plan
        policy = ServedSampler(service.episode(lease.group) if isinstance(service, ServiceRouter) else service)
        if lease.evaluation:
            assert plan.evaluation is not None
            job, temperature = plan.evaluation.job(lease.slot), plan.evaluation.temperature
        else:
            job, temperature = plan.job(lease.group, lease.slot, lease.task), plan.temperature
        (result,) = run_episodes(policy, vector, [job], temperature=temperature, retries=plan.retries)
        failure = result.failure if result.stop is StopReason.env_error else None
        # of the last attempt, and nothing sampled the replayed steps
        own = policy.versions[len(policy.versions) - (result.steps - result.replayed) :]
        if lease.evaluation:
            return episode_outcome(result, own), job.task.id, failure
        if result.rows is not None:
            for row, version in zip(row_list(result.rows), [own[0]] * result.replayed + own, strict=True):
                row.set(K.POLICY_VERSION, torch.tensor(version))
        return result, job.task.id, failure


def _pause(first: float, failures: int) -> float:
    """Seconds after so many failures in a row."""
    return first * 2 ** min(failures - 1, _DOUBLINGS) if failures else 0.0
