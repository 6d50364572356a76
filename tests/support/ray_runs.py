"""Runs on Ray: a cluster in this process, and a collector of which every part is an actor."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
from lamp_groups import GROUPS, SIZE, Learner, wins
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.cluster_utils import Cluster
from ray_heads import loaded_machine

from bepa_torchrl.rollout.weight_sync import ServiceWeightSync
from bepa_torchrl.scale.rollouts import ray_cluster
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.pool.env_worker_pool import EnvWorkerPool
from bepa_torchrl.scale.rollouts.ray_queue import RayQueue
from bepa_torchrl.scale.rollouts.ray_services import ServicePool
from bepa_torchrl.testing import LampEnv, lamp_task, lamp_vector
from osworld_gym.vector import DesktopVector

_ROLLOUTS = Path(__file__).parents[1] / "bepa_torchrl" / "scale" / "rollouts"
FOLDERS = [str(Path(__file__).parents[2]), str(Path(__file__).parent), str(_ROLLOUTS)]


def _environment() -> dict[str, Any]:
    """The environment of Ray's processes: they import this package, tests' support and the tests' own classes."""
    paths = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    return {"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}


@contextmanager
def one_node() -> Iterator[None]:
    """A cluster of this process alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in loaded_machine().items():
            patch.setenv(name, value)
        ray_cluster.connect(num_cpus=4, object_store_memory=100 << 20, runtime_env=_environment(), log_to_driver=False)
        yield
        ray.shutdown()


@contextmanager
def several_nodes() -> Iterator[Cluster]:
    """A head without desktops, to which nodes are added; this process is connected to it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in loaded_machine().items():
            patch.setenv(name, value)
        # as connect does for this process: a head without Ray's token would not reach nodes that require it
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        memory: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20}
        cluster = Cluster(initialize_head=True, head_node_args=memory | {"include_dashboard": False})
        ray_cluster.connect(cluster.address, runtime_env=_environment(), log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


class Run:
    """A collector with its queue, its rollout service and its workers, each an actor of Ray."""

    def __init__(
        self,
        *,
        staleness: int,
        workers: int | None,
        stall_seconds: float = 240.0,
        make_vector: Callable[[], DesktopVector] = lambda: lamp_vector(1),
        evaluation: EvaluationPlan | None = None,
        **pool: Any,
    ) -> None:
        self.queue = RayQueue(batch_groups=GROUPS, max_staleness=staleness, lease_seconds=120.0, max_attempts=20)
        self.services = ServicePool(lambda: Learner(wins), replicas=1, check_every=0.5, num_cpus=0)
        learner: Any = Learner(wins)
        self.collector = AsyncGroupCollector(
            LampEnv(lamp_vector(1)),
            learner,
            [lamp_task(n) for n in range(5)],
            groups=GROUPS,
            group_size=SIZE,
            seed=3,
            queue=self.queue,
            weight_sync_schemes={"policy": ServiceWeightSync(self.services.publish)},
            evaluation=evaluation,
            stall_seconds=stall_seconds,
            on_restart=lambda: self.pool.restart_workers(),
            on_stall=lambda: self.pool.describe() | self.services.describe(),
            check=lambda: self.pool.check(),
        )
        self.pool = EnvWorkerPool(
            self.queue.actor,
            self.services.actors,
            self.collector.plan,
            make_vector,
            workers=workers,
            desktops=None if workers is None else 2,
            check_every=0.5,
            resources={"num_cpus": 0},
            **pool,
        )

    def end(self) -> None:
        self.pool.stop(10.0)
        self.collector.shutdown()
        self.services.stop()
        self.queue.stop()


def wait_for(what: Callable[[], Any]) -> Any:
    """Its first true result, within four minutes."""
    end = time.monotonic() + 240.0
    while not (result := what()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return result


def processes(pool: EnvWorkerPool) -> list[int]:
    """Process ids of the workers that have started, at least one."""
    ready = wait_for(lambda: [worker for worker in list(pool.workers.values()) if worker.ready])
    return list(ray.get([worker.actor.process.remote() for worker in ready], timeout=120))


def kill_9(pool: EnvWorkerPool) -> None:
    """Kills a worker that plays, without a chance to clean up."""
    os.kill(processes(pool)[0], signal.SIGKILL)
