"""A Ray cluster of several nodes on this machine: workers follow the nodes that join and leave."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from test_async_collector import lock_step
from test_ray_cluster import FOLDERS, Run, processes, wait_for

from bepa_torchrl.distributed import ray_cluster
from bepa_torchrl.testing import summary

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head without desktops; this process is connected to it."""
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "240")  # a machine under load
    paths = os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")])
    memory: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=memory | {"include_dashboard": False})
    environment = {"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}}
    ray_cluster.connect(cluster.address, runtime_env=environment, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_node_that_joins_gets_a_worker_and_one_that_is_killed_loses_nothing(nodes: Cluster) -> None:
    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20, "resources": {"desktops": 2}}
    first = nodes.add_node(**options)
    wait_for(ray_cluster.desktop_nodes)
    run = Run(staleness=0, workers=None)
    rollouts = iter(run.collector)
    batches = []
    try:
        assert [worker.desktops for worker in run.pool.workers.values()] == [2]
        (process,) = processes(run.pool)
        batches += [summary(next(rollouts)), summary(next(rollouts))]
        nodes.add_node(**options)
        wait_for(lambda: len([worker for worker in list(run.pool.workers.values()) if worker.ready]) == 2)
        nodes.remove_node(first, allow_graceful=False)  # kill -9 of its raylet
        batches += [summary(next(rollouts)), summary(next(rollouts))]
        wait_for(lambda: len(run.pool.workers) == 1)
        wait_for(lambda: not psutil.pid_exists(process))  # with it, its desktops' keepers end them
        assert batches == lock_step(4)
        assert len(ray_cluster.desktop_nodes()) == 1
    finally:
        run.end()
