"""ServiceWeightSync on Ray: every rollout service gets the weights, also one that was killed."""

from __future__ import annotations

import os
import signal
from itertools import islice
from typing import Any

import pytest
import ray
from one_weight import GROUPS, SIZE, OneWeight, returns_and_versions
from ray_runs import wait_for

from bepa_torchrl.rollout.weight_sync import ServiceWeightSync
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.pool.env_worker_pool import EnvWorkerPool
from bepa_torchrl.scale.rollouts.ray_queue import RayQueue
from bepa_torchrl.scale.rollouts.ray_services import ServicePool
from bepa_torchrl.testing import LampEnv, lamp_task, lamp_vector

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),
]


def test_turns_on_ray_are_sampled_by_the_weights_in_training() -> None:
    """Two services, each with a worker; one is killed after the first batch, and began with a weight that wins."""
    queue = RayQueue(batch_groups=GROUPS, max_staleness=0)
    services = ServicePool(lambda: OneWeight(1.0), replicas=2, check_every=0.5, num_cpus=0)
    policy: Any = OneWeight(-1.0)
    collector = AsyncGroupCollector(
        LampEnv(lamp_vector(1)),
        policy,
        [lamp_task(n) for n in range(4)],
        groups=GROUPS,
        group_size=SIZE,
        queue=queue,
        stall_seconds=240.0,
        weight_sync_schemes={"policy": ServiceWeightSync(services.publish)},
    )
    pool = EnvWorkerPool(
        queue.actor,
        services.actors,
        collector.plan,
        lambda: lamp_vector(1),
        workers=2,
        desktops=1,
        resources={"num_cpus": 0},
    )
    try:
        found = []
        for batch in islice(collector, 3):
            found.append(returns_and_versions(batch))
            policy.weight, policy.version = -policy.weight, policy.version + 1
            if len(found) == 1:
                process, *_ = ray.get(services.actors[0].state.remote(), timeout=120)
                os.kill(process, signal.SIGKILL)
                wait_for(lambda: services.restarts == 1)
        assert found == [({0.0}, {0}), ({1.0}, {1}), ({0.0}, {2})]
    finally:
        pool.stop(10.0)
        collector.shutdown()
        services.stop()
        queue.stop()
