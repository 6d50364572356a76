"""The queue and the desktops' workers as Ray actors; requires the extra ``ray``.

Only the process that starts a run imports this module. Actors do not depend on each other's clocks, and no call waits
without a deadline.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from bepa_torchrl.distributed.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.distributed.queue_service import QueueService
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.vector import DesktopVector

_log = logging.getLogger(__name__)
CALLERS = 256  #: simultaneous calls of the queue's actor: two per worker; of a service's: one per desktop it serves
_MARGIN = 60.0  #: seconds that a call may take in addition to what it waits for


class ActorClient:
    """An actor's methods as ordinary calls with a deadline.

    Every attribute is a method of the actor. It raises as the method does, and DesktopError if the actor has exited or
    does not answer in time.

    Args:
        actor: the handle.
        deadline: seconds for a call, in addition to a ``timeout`` that is its last argument.
    """

    def __init__(self, actor: Any, deadline: float = _MARGIN) -> None:
        self._actor, self._deadline = actor, deadline

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        waits = name in ("lease", "next_group", "next_evaluation")

        def call(*args: Any) -> Any:
            deadline = self._deadline + (float(args[-1]) if waits else 0.0)
            try:
                return ray.get(getattr(self._actor, name).remote(*args), timeout=deadline)
            except RayTaskError:
                raise  # Ray raises a subclass of the method's own error
            except GetTimeoutError as error:
                raise DesktopError(FailureReason.hung, f"an actor did not answer {name} in {deadline:g} s") from error
            except RayActorError as error:
                raise DesktopError(FailureReason.died, f"an actor has exited: {error}") from error

        return call


class _Node(EnvWorker):
    """The desktops of one node."""

    def __init__(self, name: str, queue: Any, service: Any, *args: Any, **options: Any) -> None:
        super().__init__(name, ActorClient(queue), ActorClient(service, 600.0), *args, **options)

    def process(self) -> int:
        """The actor's process id."""
        return os.getpid()


def connect(address: str | None = None, **options: Any) -> None:
    """Connects to a Ray cluster.

    Args:
        address: of the cluster's head; None: a cluster on this machine, for this process.
        options: further arguments of ``ray.init``.

    Raises:
        DesktopError: there is no cluster at the address.
    """
    try:
        ray.init(address=address, include_dashboard=False if address is None else None, **options)
    except ConnectionError as error:
        raise DesktopError(
            FailureReason.never_ready,
            f"no Ray cluster at {address} ({error}); start its head with `ray start --head`, or correct the address",
        ) from error


def start_queue(**options: Any) -> Any:
    """The queue's actor, with the arguments of :class:`~bepa_torchrl.distributed.task_queue.TaskQueue`."""
    return ray.remote(QueueService).options(num_cpus=0, max_concurrency=CALLERS).remote(**options)


@dataclass(slots=True)
class _Worker:
    """One worker of a pool.

    Args:
        name: also its name in the queue.
        actor: the handle.
        ready: whether it has answered.
        asked: the health check that it has not answered yet, if any.
        since: when that was asked; monotonic seconds.
    """

    name: str
    actor: Any
    ready: bool = False
    asked: Any = None
    since: float = 0.0


class EnvWorkerPool:
    """A fixed number of workers, each an actor; one that has exited or does not answer is replaced.

    Args:
        queue: the queue's actor.
        services: the rollout services' actors; workers are spread over them.
        plan: the run's tasks and seeds.
        make_vector: makes one desktop, in the worker's process.
        workers: number of actors.
        desktops: per worker.
        renew_every: seconds between renewals of leases.
        check_every: seconds between two health checks.
        answer_within: seconds after which a worker that does not answer is killed.
        start_within: the same, until its first answer.
        resources: Ray's, per worker; the default spreads workers over the nodes.
    """

    def __init__(
        self,
        queue: Any,
        services: list[Any],
        plan: RolloutPlan,
        make_vector: Callable[[], DesktopVector],
        *,
        workers: int,
        desktops: int,
        renew_every: float = 20.0,
        check_every: float = 5.0,
        answer_within: float = 60.0,
        start_within: float = 600.0,
        resources: dict[str, Any] | None = None,
    ) -> None:
        self._queue, self._services = queue, services
        self._arguments = (plan, make_vector)
        self._options = {"desktops": desktops, "renew_every": renew_every}
        self._resources = {"scheduling_strategy": "SPREAD"} if resources is None else resources
        self._check_every, self._answer_within, self._start_within = check_every, answer_within, start_within
        self._names = itertools.count()
        self._lock = threading.Lock()
        self.workers: dict[str, _Worker] = {}
        self.replaced = 0
        for _ in range(workers):
            self._start()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="health of env workers", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Ends all workers, after the episodes that are running or ``timeout`` seconds."""
        self._stopping.set()
        self._thread.join(_MARGIN + timeout)
        ready = [worker.actor.stop.remote(timeout) for worker in self.workers.values() if worker.ready]
        if ready:
            ray.wait(ready, num_returns=len(ready), timeout=timeout)
        for worker in self.workers.values():
            ray.kill(worker.actor)

    def _start(self) -> None:
        number = next(self._names)
        name = f"worker{number}"
        actor = ray.remote(_Node).options(max_concurrency=4, **self._resources)
        service = self._services[number % len(self._services)]
        worker = actor.remote(name, self._queue, service, *self._arguments, **self._options)
        with self._lock:
            self.workers[name] = _Worker(name, worker)

    def _watch(self) -> None:
        while not self._stopping.wait(self._check_every):
            for worker in list(self.workers.values()):
                problem = self._problem(worker)
                if problem is not None and not self._stopping.is_set():
                    self._replace(worker, problem)

    def _problem(self, worker: _Worker) -> str | None:
        """Why a worker must be replaced, or None. Does not wait: asks, and reads the answer at a later check."""
        if worker.asked is None:
            worker.asked, worker.since = worker.actor.alive.remote(), time.monotonic()
        done, _ = ray.wait([worker.asked], timeout=0)
        if not done:
            limit = self._answer_within if worker.ready else self._start_within
            late = time.monotonic() - worker.since > limit
            return f"did not answer in {limit:g} s" if late else None
        try:
            alive = ray.get(worker.asked, timeout=self._answer_within)
        except RayActorError as error:
            return f"has exited ({str(error).splitlines()[0]})"
        except RayTaskError as error:
            return f"failed ({error})"
        worker.asked, worker.ready = None, True
        return None if alive else "has no desktop left"

    def _replace(self, worker: _Worker, problem: str) -> None:
        name = worker.name
        ray.kill(worker.actor)
        with self._lock:
            del self.workers[name]
        requeued = ActorClient(self._queue).release(name, f"{name} {problem}")
        self.replaced += 1
        self._start()
        _log.warning("%s %s: %d episodes are requeued, another worker is started", name, problem, requeued)
