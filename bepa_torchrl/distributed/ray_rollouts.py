"""Asynchronous rollouts on Ray: the queue, rollout services and workers as actors of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import ray
from torchrl.envs import EnvBase

from bepa_torchrl.distributed.async_collector import AsyncGroupCollector, GroupSource
from bepa_torchrl.distributed.ray_cluster import ActorClient, EnvWorkerPool, connect, start_queue
from bepa_torchrl.distributed.ray_services import ServicePool
from bepa_torchrl.distributed.task_queue import Order
from bepa_torchrl.policies.base import Policy, RolloutPolicy
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

LOCAL = "local"  #: as an address: a cluster on this machine, for this process
_STOP_SECONDS = 10.0  #: for the episodes that are running when the training ends


def ray_collector(
    env: EnvBase,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    address: str,
    make_policy: Callable[[], RolloutPolicy],
    make_vector: Callable[[], DesktopVector],
    workers: int,
    desktops: int,
    replicas: int,
    gpus_per_replica: float,
    max_rows: int,
    max_staleness: int,
    order: Order,
    **options: Any,
) -> AsyncGroupCollector:
    """A collector whose episodes are played by actors; its ``shutdown`` ends them and leaves the cluster.

    Args:
        env: as of :class:`~bepa_torchrl.rollout.group_collector.GroupRolloutCollector`; not used for rollouts.
        policy: the trainer's.
        tasks: the training tasks.
        address: of the cluster's head, ``auto`` for the one of this machine, or :data:`LOCAL`.
        make_policy: makes a policy that samples, in a rollout service's process.
        make_vector: makes one desktop, in a worker's process.
        workers: actors with desktops, spread over the nodes.
        desktops: episodes that run at once, over all workers.
        replicas: rollout services.
        gpus_per_replica: Ray's ``num_gpus`` of each.
        max_rows: rows per call of a service's policy.
        max_staleness: batches that may be trained between a group's admission and its own training.
        order: see :class:`~bepa_torchrl.distributed.task_queue.TaskQueue`.
        options: further arguments of the collector.

    Raises:
        DesktopError: there is no cluster at the address.
        ValueError: more workers than desktops.
    """
    if workers > desktops:
        raise ValueError(f"{workers} workers require as many desktops, got {desktops}; lower cluster.workers")
    connect(None if address == LOCAL else address, log_to_driver=False)
    queue = start_queue(batch_groups=options["groups"], max_staleness=max_staleness, order=order)
    services = ServicePool(make_policy, replicas=replicas, max_rows=max_rows, num_cpus=0, num_gpus=gpus_per_replica)
    pools: list[EnvWorkerPool] = []

    def stop() -> None:
        for pool in pools:
            pool.stop(_STOP_SECONDS)
        services.stop()
        ray.kill(queue)
        ray.shutdown()

    collector = AsyncGroupCollector(
        env,
        policy,
        tasks,
        queue=cast(GroupSource, ActorClient(queue)),
        publish=services.publish,
        on_shutdown=stop,
        **options,
    )
    each = -(-desktops // workers)
    resources = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
    pools.append(
        EnvWorkerPool(
            queue, services.actors, collector.plan, make_vector, workers=workers, desktops=each, resources=resources
        )
    )
    return collector
