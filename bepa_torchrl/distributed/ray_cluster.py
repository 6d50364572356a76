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
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from bepa_torchrl.distributed.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.distributed.queue_service import QueueService
from bepa_torchrl.distributed.ray_address import FIX, check_head
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.vector import DesktopVector

_log = logging.getLogger(__name__)
CALLERS = 256  #: simultaneous calls of the queue's actor: two per worker; of a service's: one per desktop it serves
DESKTOPS = "desktops"  #: resource of the nodes that get a worker: ``ray start --resources='{"desktops": 8}'``
MAX_FAILURES = 3  #: workers of a node that could not start, or had to end since no desktop could be made
_MARGIN = 60.0  #: seconds that a call may take in addition to what it waits for


class ActorClient:
    """An actor's methods as ordinary calls with a deadline.

    Every attribute is a method of the actor. It raises as the method does, and DesktopError if the actor has exited,
    cannot be reached or does not answer in time.

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
            except RayError as error:
                raise DesktopError(FailureReason.died, f"an actor cannot be reached by {name}: {error}") from error

        return call


class _Node(EnvWorker):
    """The desktops of one node."""

    def __init__(self, name: str, queue: Any, service: Any, seconds: float, *args: Any, **options: Any) -> None:
        super().__init__(name, ActorClient(queue), ActorClient(service, seconds), *args, **options)

    def process(self) -> int:
        """The actor's process id."""
        return os.getpid()


def connect(address: str | None = None, **options: Any) -> None:
    """Connects to a Ray cluster.

    Args:
        address: of the cluster's head; None: a cluster on this machine, for this process.
        options: further arguments of ``ray.init``.

    Raises:
        DesktopError: there is no cluster at the address, or it has another version of Ray or Python.
        ValueError: no address.
    """
    if address is not None:
        check_head(address)
        # `ray start` requires Ray's token if there is one, but ray.init does not send it by itself
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        ray.init(address=address, include_dashboard=False if address is None else None, **options)
    except ConnectionError as error:
        raise DesktopError(
            FailureReason.never_ready,
            f"no Ray cluster at {address} ({error}); {FIX} (if it runs: has this machine its ~/.ray/auth_token?)",
        ) from error
    except RuntimeError as error:
        if "version mismatch" not in str(error).lower():
            raise
        raise DesktopError(
            FailureReason.never_ready, f"{address}: {error}; install the same versions of Ray and Python on every node"
        ) from error


def start_queue(**options: Any) -> Any:
    """The queue's actor, with the arguments of :class:`~bepa_torchrl.distributed.task_queue.TaskQueue`.

    It is on this process's node: the run ends with this process anyway, and should not end with any other node.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(QueueService).options(num_cpus=0, max_concurrency=CALLERS, scheduling_strategy=here)
    return actor.remote(**options)


def described(actor: Any, within: float = 10.0) -> Any:
    """What an actor waits for: its ``describe()``, or why there is no answer."""
    try:
        return ray.get(actor.describe.remote(), timeout=within)
    except GetTimeoutError:
        return f"no answer in {within:g} s"
    except RayError as error:
        return f"has exited, or failed ({_first_line(error)})"


def _first_line(error: RayError) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def desktop_nodes() -> dict[str, int]:
    """Id of each node that has the resource :data:`DESKTOPS` → its number of desktops."""
    found = {node["NodeID"]: int(node["Resources"].get(DESKTOPS, 0)) for node in ray.nodes() if node["Alive"]}
    return {node: desktops for node, desktops in found.items() if desktops > 0}


@dataclass(slots=True)
class _Worker:
    """One worker of a pool.

    Args:
        name: also its name in the queue.
        actor: the handle.
        node: id of the node that it must be on; None: any.
        desktops: that it has.
        ready: whether it has answered.
        asked: the health check that it has not answered yet, if any.
        since: when that, or its end, was asked; monotonic seconds.
        ending: the call that ends it, after its episodes; None: it is not to end.
    """

    name: str
    actor: Any
    node: str | None
    desktops: int
    ready: bool = False
    asked: Any = None
    since: float = 0.0
    ending: Any = None


class EnvWorkerPool:
    """Workers, each an actor; one that has exited or does not answer is replaced.

    There is a fixed number of them, or one on each node with the resource :data:`DESKTOPS`: a node that joins gets one,
    the leases of one that leaves are requeued. A node on which no worker can start, or no desktop can be made, is left
    out after :data:`MAX_FAILURES` workers.

    Args:
        queue: the queue's actor.
        services: the rollout services' actors; workers are spread over them.
        plan: the run's tasks and seeds.
        make_vector: makes one desktop, in the worker's process.
        workers: number of actors; None: one per node.
        desktops: per worker; None: the node's.
        service_seconds: deadline of a call of a rollout service.
        renew_every: seconds between renewals of leases.
        check_every: seconds between two health checks.
        answer_within: seconds after which a worker that does not answer is killed.
        start_within: the same, until its first answer.
        end_within: seconds that :meth:`restart_workers` waits for the episodes of a worker.
        resources: Ray's, per worker; the default spreads workers over the nodes.

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
        renew_every: float = 20.0,
        check_every: float = 5.0,
        answer_within: float = 60.0,
        start_within: float = 600.0,
        end_within: float = 600.0,
        resources: dict[str, Any] | None = None,
    ) -> None:
        if (workers is None) != (desktops is None):
            raise ValueError(f"workers and desktops must both be None, or neither; got {workers} and {desktops}")
        self._queue, self._services, self._service_seconds = queue, services, service_seconds
        self._arguments, self._renew_every = (plan, make_vector), renew_every
        self._resources = {"scheduling_strategy": "SPREAD"} if resources is None else resources
        self._check_every, self._answer_within, self._start_within = check_every, answer_within, start_within
        self._end_within = end_within
        self._names = itertools.count()
        self._lock = threading.Lock()
        self.workers: dict[str, _Worker] = {}
        self.replaced = self.restarted = 0
        self._outdated: list[str] = []  #: workers to restart
        self._failures: Counter[str] = Counter()  #: by node
        self._follows = workers is None
        for _ in range(workers or 0):
            self._start(None, desktops or 1)
        if self._follows:
            self._follow(desktop_nodes())
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

    def _start(self, node: str | None, desktops: int) -> None:
        number = next(self._names)
        name = f"worker{number}"
        place = {} if node is None else {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        actor = ray.remote(_Node).options(max_concurrency=4, **(self._resources | place))
        service = self._services[number % len(self._services)]
        options = {"desktops": desktops, "renew_every": self._renew_every}
        worker = actor.remote(name, self._queue, service, self._service_seconds, *self._arguments, **options)
        with self._lock:
            self.workers[name] = _Worker(name, worker, node, desktops)

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

    def _check(self) -> None:
        for worker in list(self.workers.values()):
            problem = None if worker.ending is not None else self._problem(worker)
            if problem is not None and not self._stopping.is_set():
                self._replace(worker, problem)
        if self._follows:
            self._follow(desktop_nodes())
        self._roll()

    def _problem(self, worker: _Worker) -> str | None:
        """Why a worker must be replaced, or None. Does not wait: asks, and reads the answer at a later check."""
        if worker.asked is None:
            worker.asked, worker.since = worker.actor.state.remote(), time.monotonic()
        done, _ = ray.wait([worker.asked], timeout=0)
        if not done:
            limit = self._answer_within if worker.ready else self._start_within
            late = time.monotonic() - worker.since > limit
            return f"did not answer in {limit:g} s" if late else None
        try:
            alive, problem = ray.get(worker.asked, timeout=self._answer_within)
        except RayTaskError as error:
            return f"failed ({error})"
        except RayError as error:  # not always a RayActorError: a node can be gone before Ray stops listing it
            return f"{'has exited' if worker.ready else 'could not be started'} ({_first_line(error)})"
        worker.asked, worker.ready = None, True
        if alive:
            return None
        if worker.node is not None:
            self._failures[worker.node] += 1
        return f"has no desktop left ({problem})"

    def _replace(self, worker: _Worker, problem: str) -> None:
        requeued = self._end(worker, problem)
        self.replaced += 1
        if not worker.ready and worker.node is not None:
            self._failures[worker.node] += 1
        if not self._follows:  # else the node gets one if it is still there
            self._start(worker.node, worker.desktops)
        _log.warning("%s %s: %d episodes are requeued, it is replaced", worker.name, problem, requeued)

    def _follow(self, nodes: Mapping[str, int]) -> None:
        """Ends the workers of nodes that have left, starts one on each node that has none."""
        for worker in list(self.workers.values()):
            if worker.node not in nodes:
                requeued = self._end(worker, "was on a node that has left")
                _log.warning("%s was on a node that has left: %d episodes are requeued", worker.name, requeued)
        present = {worker.node for worker in self.workers.values()}
        for node, desktops in nodes.items():
            if node in present or self._failures[node] > MAX_FAILURES:
                continue
            if self._failures[node] == MAX_FAILURES:
                self._failures[node] += 1
                _log.error("node %s is left out: %d workers could not start, or make a desktop", node, MAX_FAILURES)
            else:
                self._start(node, desktops)

    def _roll(self) -> None:
        """One step of :meth:`restart_workers`: at most one worker is ending, or was started and has not answered."""
        ending = next((worker for worker in self.workers.values() if worker.ending is not None), None)
        if ending is not None:
            late = time.monotonic() - ending.since > self._end_within + self._answer_within
            if late or ray.wait([ending.ending], timeout=0)[0]:
                self._end(ending, "is restarted")
                self._start(ending.node, ending.desktops)
                self.restarted += 1
            return
        with self._lock:
            self._outdated = [name for name in self._outdated if name in self.workers]
        if self._outdated and all(worker.ready for worker in self.workers.values()):
            worker = self.workers[self._outdated[0]]
            worker.ending, worker.since = worker.actor.stop.remote(self._end_within), time.monotonic()
