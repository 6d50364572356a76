"""EnvWorker: desktops of one node that play episodes leased from the queue, one thread per desktop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.distributed.evaluations import EvaluationPlan, episode_outcome
from bepa_torchrl.distributed.rollout_service import RolloutClient, ServedPolicy
from bepa_torchrl.distributed.task_queue import Lease, StaleTicketError
from bepa_torchrl.distributed.waiting import waiting_threads
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.rollout.group_collector import RolloutSeeds
from osworld_gym.errors import DesktopError
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

_log = logging.getLogger(__name__)
_MAX_STARTS = 3  #: attempts in a row to make a desktop
_PAUSE = 5.0  #: seconds after the first failed attempt, twice as much after the second
_AFTER_ERROR = 1.0  #: seconds until a desktop plays again after an error of the policy


class QueueClient(Protocol):
    """How a worker reaches the queue (:class:`bepa_torchrl.distributed.queue_service.QueueService`)."""

    def lease(self, worker: str, limit: int, timeout: float) -> list[Lease]: ...
    def renew(self, tickets: list[str]) -> list[str]: ...
    def complete(self, ticket: str, result: Any) -> None: ...
    def fail(self, ticket: str, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What a worker must know to play a lease.

    Args:
        tasks: the training tasks, in the trainer's order.
        seeds: of the run.
        temperature: sampling temperature.
        retries: further attempts for an episode whose desktop failed.
        evaluation: the episodes of evaluations; None: there are none.
    """

    tasks: tuple[Task, ...]
    seeds: RolloutSeeds
    temperature: float
    retries: int
    evaluation: EvaluationPlan | None = None

    def job(self, group: int, slot: int, task: Sequence[int]) -> EpisodeJob:
        """The job of a slot; ``task`` is (task number, number of the admission), as admitted to the queue."""
        number, admission = task
        return self.seeds.job(self.tasks[number], number, admission, group, slot)


class EnvWorker:
    """Plays leased episodes until :meth:`stop`.

    Args:
        name: of this worker, unique in the run.
        queue: leases and results.
        service: the policy.
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
        service: RolloutClient,
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
        self._leased: SimpleQueue[Lease | None] = SimpleQueue()
        self._problem: str | None = None
        self._idle = threading.Semaphore(0)  # desktops that wait for a lease
        self._players = [
            threading.Thread(target=self._play_all, name=f"{name}/{number}", daemon=True) for number in range(desktops)
        ]
        self._others = [
            threading.Thread(target=self._lease_all, name=f"{name}/leases", daemon=True),
            threading.Thread(target=self._renew_all, name=f"{name}/renewal", daemon=True),
        ]
        for thread in (*self._players, *self._others):
            thread.start()

    def alive(self) -> int:
        """Number of threads that play; 0 if no more leases are taken."""
        return sum(thread.is_alive() for thread in self._players) if self._others[0].is_alive() else 0

    def state(self) -> tuple[int, str | None]:
        """:meth:`alive`, and why the last desktop could not be made, if so."""
        return self.alive(), self._problem

    def describe(self) -> dict[str, Any]:
        """What this worker does and waits for, as JSON-compatible values."""
        alive, problem = self.state()
        with self._lock:
            leases = len(self._tickets)
        return {"playing_threads": alive, "leases": leases, "problem": problem, "threads": waiting_threads()}

    def stop(self, timeout: float) -> None:
        """Ends after the episodes that are running, or after ``timeout`` seconds without them."""
        self._stopping.set()
        for _ in self._players:
            self._leased.put(None)
        self._idle.release()  # wakes the thread that leases
        players, (leases, renewal) = self._players, self._others
        end = time.monotonic() + timeout
        for thread in (*players, leases):
            thread.join(max(0.0, end - time.monotonic()))
        while not self._leased.empty():  # leases that came after the players had ended
            lease = self._leased.get()
            if lease is not None:
                self._give_back(lease, f"{self.name} has ended")
        self._ended.set()
        renewal.join(max(0.0, end - time.monotonic()))

    def _give_back(self, lease: Lease, reason: str) -> None:
        """Ends a lease without a result."""
        with suppress(StaleTicketError):  # it has ended already
            self._queue.fail(lease.ticket, reason)
        with self._lock:
            self._tickets.discard(lease.ticket)

    def _lease_all(self) -> None:
        """Leases for all idle desktops at once, so that a worker has one call at the queue, however many desktops."""
        while not self._stopping.is_set():
            self._idle.acquire()
            idle = 1
            while self._idle.acquire(blocking=False):
                idle += 1
            if self._stopping.is_set():
                return
            leases = self._queue.lease(self.name, idle, self._poll)
            with self._lock:
                self._tickets.update(lease.ticket for lease in leases)
            for lease in leases:
                self._leased.put(lease)
            for _ in range(idle - len(leases)):
                self._idle.release()

    def _play_all(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                vector = self._make_vector()
            except Exception as error:  # noqa: BLE001  stated by state()
                self._problem = f"{type(error).__name__}: {error}"
                failures += 1
                if not isinstance(error, DesktopError) or failures == _MAX_STARTS:
                    _log.exception("%s: no desktop", self.name)
                    return
                self._stopping.wait(failures * _PAUSE)
                continue
            failures, self._problem = 0, None
            with closing(vector):
                self._play_on(vector)

    def _play_on(self, vector: DesktopVector) -> None:
        """Plays until the end, or until an error other than a desktop's, after which a new vector is made."""
        while not self._stopping.is_set():
            self._idle.release()
            lease = self._leased.get()
            if lease is None:
                return
            try:
                result = self._play(lease, vector)
            except Exception as error:  # noqa: BLE001  stated as the lease's reason
                self._give_back(lease, f"{self.name}: {type(error).__name__}: {error}")
                self._stopping.wait(_AFTER_ERROR)
                return
            with suppress(StaleTicketError):  # too late: another worker plays it
                self._queue.complete(lease.ticket, result)
            with self._lock:
                self._tickets.discard(lease.ticket)

    def _play(self, lease: Lease, vector: DesktopVector) -> EpisodeResult | dict[str, Any]:
        """Plays one episode; its rows have the version of the weights of each turn. Of an evaluation: its outcome."""
        policy, plan = ServedPolicy(self._service), self._plan
        if lease.evaluation:
            assert plan.evaluation is not None
            job, temperature = plan.evaluation.job(lease.slot), plan.evaluation.temperature
            (result,) = run_episodes(policy, vector, [job], temperature=temperature, retries=plan.retries)
            return episode_outcome(result, policy.versions)
        job = plan.job(lease.group, lease.slot, lease.task)
        (result,) = run_episodes(policy, vector, [job], temperature=plan.temperature, retries=plan.retries)
        if result.rows is not None:
            rows = row_list(result.rows)
            for row, version in zip(rows, policy.versions[-len(rows) :], strict=True):
                row.set(K.POLICY_VERSION, torch.tensor(version))
        return result

    def _renew_all(self) -> None:
        """Renews the leases of the running episodes, also of those that :meth:`stop` waits for."""
        while not self._ended.wait(self._renew_every):
            with self._lock:
                tickets = sorted(self._tickets)
            if tickets:
                self._queue.renew(tickets)
