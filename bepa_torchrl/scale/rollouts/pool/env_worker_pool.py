"""EnvWorkerPool: workers as Ray actors, replaced when they exit, do not answer, or have no desktop that works."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bepa_torchrl.scale.rollouts.env_worker import EnvWorker, RolloutPlan, WorkerState
from bepa_torchrl.scale.rollouts.pool.back_pressure import SHRINK_SECONDS, PoolSize
from bepa_torchrl.scale.rollouts.pool.nodes import FORGIVE_SECONDS, NodeFailures
from bepa_torchrl.scale.rollouts.ray_cluster import DESKTOPS, ActorClient, check_version, described, reason_of
from bepa_torchrl.scale.rollouts.ray_routing import ray_services
from bepa_torchrl.scale.rollouts.routing import SLACK
from osworld_gym import __version__
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.vector import DesktopVector

_log = logging.getLogger(__name__)
_MARGIN = 60.0  #: seconds that a health check may take to end


class _Reach(NamedTuple):
    """How workers call rollout services: the deadline of a call, and as of :func:`..routing.choose`."""

    seconds: float
    slack: int


class _Node(EnvWorker):
    """The desktops of one node."""

    def __init__(
        self, version: str, name: str, queue: Any, services: list[Any], reach: _Reach, *args: Any, **options: Any
    ) -> None:
        check_version(version)
        super().__init__(name, ActorClient(queue), ray_services(services, *reach), *args, **options)

    def process(self) -> int:
        """The actor's process id."""
        return os.getpid()

    def health(self, desktops: int) -> WorkerState:
        """Its state; it is to have so many desktops from now on."""
        self.resize(desktops)
        return self.state()


def cluster_nodes() -> dict[str, int]:
    """Id of each node that is there → its number of desktops by the resource :data:`DESKTOPS`, 0 without it."""
    listed: Callable[[], list[dict[str, Any]]] = ray.nodes
    return {node["NodeID"]: int(node["Resources"].get(DESKTOPS, 0)) for node in listed() if node["Alive"]}


@dataclass(slots=True)
class _Worker:
    """One worker of a pool.

    Args:
        name: also its name in the queue.
        actor: the handle.
        node: id of the node that it is on.
        desktops: that it can have.
        wanted: that it is to have now.
        counted: that it has by what the queue was told.
        ready: whether it has answered.
        played: episodes by its last answer.
        moved: turns by its last answer that another rollout service answered than the turn before.
        asked: the health check that it has not answered yet, if any.
        since: when that, or its end, was asked; monotonic seconds.
        ending: the call that ends it, after its episodes; None: it is not to end.
    """

    name: str
    actor: Any
    node: str
    desktops: int
    wanted: int
    counted: int
    ready: bool = False
    played: int = 0
    moved: int = 0
    asked: Any = None
    since: float = 0.0
    ending: Any = None


class EnvWorkerPool:
    """Workers, each an actor; one that has exited, does not answer, or has no desktop that works is replaced.

    There is a fixed number of them, spread over the nodes, or one on each node with the resource :data:`DESKTOPS`: a
    node that joins gets one, the leases of one that leaves are requeued. A node whose workers fail is left out
    (:class:`~bepa_torchrl.scale.rollouts.pool.nodes.NodeFailures`); with a fixed number, others get its workers.
    Desktops that the trainer's pace does not require are closed, and made again when it waits
    (:mod:`~bepa_torchrl.scale.rollouts.pool.back_pressure`); each worker keeps one.

    Args:
        queue: the queue's actor.
        services: the rollout services' actors, of which each worker chooses one for every turn.
        plan: the run's tasks and seeds.
        make_vector: makes one desktop, in the worker's process.
        workers: number of actors; None: one per node.
        desktops: per worker; None: the node's.
        service_seconds: deadline of a call of a rollout service.
        slack: as of :func:`~bepa_torchrl.scale.rollouts.routing.choose`.
        renew_every: seconds between renewals of leases.
        check_every: seconds between two health checks.
        answer_within: seconds after which a worker that does not answer is killed.
        start_within: the same, until its first answer.
        end_within: seconds that :meth:`restart_workers` waits for the episodes of a worker.
        forgive_after: seconds after which a node that was left out is tried again.
        shrink_after: seconds after which desktops that are not required are closed; None: never.
        resources: Ray's, per worker; where it is placed is the pool's decision.

    Raises:
        ValueError: only one of ``workers`` and ``desktops`` is None.
    """

    def __init__(
        self,
        queue: Any,
        services: list[Any],
        plan: RolloutPlan,
        make_vector: Callable[[], DesktopVector],
        *,
        workers: int | None,
        desktops: int | None,
        service_seconds: float = 600.0,
        slack: int = SLACK,
        renew_every: float = 20.0,
        check_every: float = 5.0,
        answer_within: float = 60.0,
        start_within: float = 600.0,
        end_within: float = 600.0,
        forgive_after: float = FORGIVE_SECONDS,
        shrink_after: float | None = SHRINK_SECONDS,
        resources: dict[str, Any] | None = None,
    ) -> None:
        if (workers is None) != (desktops is None):
            raise ValueError(f"workers and desktops must both be None, or neither; got {workers} and {desktops}")
        self._queue, self._services, self._reach = queue, services, _Reach(service_seconds, slack)
        self._arguments, self._renew_every = (plan, make_vector), renew_every
        self._resources = resources or {}
        self._check_every, self._answer_within, self._start_within = check_every, answer_within, start_within
        self._end_within = end_within
        self._names = itertools.count()
        self._lock = threading.Lock()
        self.workers: dict[str, _Worker] = {}
        self.replaced = self.restarted = 0
        self._moved = 0  #: turns since the last :meth:`drain_moved`
        self._outdated: list[str] = []  #: workers to restart
        self._failures = NodeFailures(forgive_after=forgive_after)
        self._size = None if shrink_after is None else PoolSize(shrink_after)
        self._hopeless: str | None = None
        self._number, self._desktops = workers, desktops
        self._fill(cluster_nodes())
        if not self.workers:
            _log.warning(
                "no node has the resource %s yet; start one with --resources='{\"%s\": 8}'", DESKTOPS, DESKTOPS
            )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="health of env workers", daemon=True)
        self._thread.start()

    def restart_workers(self) -> None:
        """Restarts all workers, one after the other, each after its episodes; returns at once."""
        with self._lock:
            self._outdated = list(self.workers)

    def drain_moved(self) -> int:
        """Turns that another service answered than the episode's turn before, by the health checks since the last."""
        with self._lock:
            moved, self._moved = self._moved, 0
        return moved

    def check(self) -> None:
        """Raises DesktopError if there is no worker, and none can be started."""
        if self._hopeless is not None:
            raise DesktopError(
                FailureReason.never_ready,
                f"no worker is left: all nodes are left out; {self._hopeless}; put the nodes right, then go on with "
                "resume=true",
            )

    def describe(self) -> dict[str, Any]:
        """What each worker waits for."""
        return {name: described(worker.actor) for name, worker in list(self.workers.items())}

    def stop(self, timeout: float = 30.0) -> None:
        """Ends all workers, after the episodes that are running or ``timeout`` seconds."""
        self._stopping.set()
        self._thread.join(_MARGIN + timeout)
        ready = [worker.actor.stop.remote(timeout) for worker in self.workers.values() if worker.ready]
        if ready:
            ray.wait(ready, num_returns=len(ready), timeout=timeout)
        for worker in self.workers.values():
            ray.kill(worker.actor)

    def _start(self, node: str, desktops: int) -> None:
        number = next(self._names)
        name = f"worker{number}"
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(_Node).options(max_concurrency=4, **self._resources, scheduling_strategy=place)
        options = {"desktops": desktops, "renew_every": self._renew_every}
        reaches = (self._queue, self._services, self._reach)
        worker = actor.remote(__version__, name, *reaches, *self._arguments, **options)
        with self._lock:
            self.workers[name] = _Worker(name, worker, node, desktops, wanted=desktops, counted=desktops)
        self._announce(name)

    def _announce(self, name: str) -> None:
        """Tells the queue that this worker will be there, so that what fails on another is kept for it."""
        self._queue.lease.remote(name, 0, 0.0)

    def _end(self, worker: _Worker, problem: str) -> int:
        """Removes a worker; returns how many of its episodes are requeued.

        Raises:
            DesktopError: the queue does not answer; the worker is not removed, so that the next check tries again.
        """
        ray.kill(worker.actor)
        requeued = int(ActorClient(self._queue).release(worker.name, f"{worker.name} {problem}"))
        with self._lock:
            del self.workers[worker.name]
        return requeued

    # --- the thread that watches --------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._stopping.wait(self._check_every):
            try:
                self._check()
            except (DesktopError, RayError) as error:  # the queue's actor, or Ray: the trainer's next call of it raises
                _log.warning("health of env workers: %s", error)
            except Exception:  # noqa: BLE001  without this thread no worker would be replaced any more
                _log.exception("health of env workers")

    def _check(self) -> None:
        for worker in list(self.workers.values()):
            problem = None if worker.ending is not None else self._problem(worker)
            if problem is not None and not self._stopping.is_set():
                self._replace(worker, problem)
        nodes = cluster_nodes()
        self._leave(nodes)
        self._roll()
        self._fill(nodes)
        self._resize()

    def _resize(self) -> None:
        """Decides how many desktops each worker is to have; it learns so with its next health check."""
        if self._size is None or (demand := ActorClient(self._queue).demand()) is None:
            return
        most = {name: worker.desktops for name, worker in self.workers.items()}
        for name, desktops in self._size.update(demand, most).items():
            self.workers[name].wanted = desktops

    def _problem(self, worker: _Worker) -> str | None:
        """Why a worker must be replaced, or None. Does not wait: asks, and reads the answer at a later check."""
        if worker.asked is None:
            worker.asked, worker.since = worker.actor.health.remote(worker.wanted), time.monotonic()
        done, _ = ray.wait([worker.asked], timeout=0)
        if not done:
            limit = self._answer_within if worker.ready else self._start_within
            if not worker.ready:
                self._announce(worker.name)
            late = time.monotonic() - worker.since > limit
            return f"did not answer in {limit:g} s" if late else None
        try:
            state: WorkerState = ray.get(worker.asked, timeout=self._answer_within)
        except RayTaskError as error:
            return f"failed ({error})"
        except RayError as error:  # not always a RayActorError: a node can be gone before Ray stops listing it
            return f"{'has exited' if worker.ready else 'could not be started'} ({reason_of(error)})"
        worker.asked, worker.ready = None, True
        return self._judged(worker, state)

    def _judged(self, worker: _Worker, state: WorkerState) -> str | None:
        """Why a worker that answers must be replaced, or None; its node is counted."""
        if state.desktops != worker.counted:
            worker.counted = state.desktops
            self._queue.resize.remote(worker.name, state.desktops)
        with self._lock:
            self._moved, worker.moved = self._moved + state.moved - worker.moved, state.moved
        if state.played > worker.played:
            worker.played = state.played
            self._failures.succeeded(worker.node)
        if state.alive and state.sick is None:
            return None
        problem = f"has no desktop left ({state.problem})" if not state.alive else f"is of no use: {state.sick}"
        self._failures.failed(worker.node, problem)
        return problem

    def _replace(self, worker: _Worker, problem: str) -> None:
        requeued = self._end(worker, problem)
        self.replaced += 1
        if not worker.ready:
            self._failures.failed(worker.node, problem)
        _log.warning("%s %s: %d episodes are requeued, it is replaced", worker.name, problem, requeued)

    def _leave(self, nodes: Mapping[str, int]) -> None:
        """Ends the workers of nodes that have left."""
        for worker in list(self.workers.values()):
            if worker.node not in nodes:
                requeued = self._end(worker, "was on a node that has left")
                _log.warning("%s was on a node that has left: %d episodes are requeued", worker.name, requeued)

    def _fill(self, nodes: Mapping[str, int]) -> None:
        """Starts the workers that are missing, on nodes that are not left out."""
        left_out = self._failures.left_out()
        wanted = {node: count for node, count in nodes.items() if count > 0 or self._number is not None}
        usable = {node: count for node, count in wanted.items() if node not in left_out}
        used = Counter(worker.node for worker in list(self.workers.values()))
        if self._number is None:
            for node, desktops in usable.items():
                if not used[node]:
                    self._start(node, desktops)
        else:
            for _ in range(self._number - len(self.workers) if usable else 0):
                node = min(usable, key=lambda each: used[each])
                used[node] += 1
                self._start(node, self._desktops or 1)
        self._hopeless = None
        if wanted and not usable and not self.workers:
            self._hopeless = "; ".join(f"node {node}: {left_out[node]}" for node in wanted)

    def _roll(self) -> None:
        """One step of :meth:`restart_workers`: at most one worker is ending, or was started and has not answered."""
        ending = next((worker for worker in self.workers.values() if worker.ending is not None), None)
        if ending is not None:
            late = time.monotonic() - ending.since > self._end_within + self._answer_within
            if late or ray.wait([ending.ending], timeout=0)[0]:
                self._end(ending, "is restarted")  # another one is started in its place
                self.restarted += 1
            return
        with self._lock:
            self._outdated = [name for name in self._outdated if name in self.workers]
        if self._outdated and all(worker.ready for worker in self.workers.values()):
            worker = self.workers[self._outdated[0]]
            worker.ending, worker.since = worker.actor.stop.remote(self._end_within), time.monotonic()
