"""Asynchronous rollouts on Ray: the queue, rollout services and workers as actors of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from torchrl.envs import EnvBase

from bepa_torchrl.policies.base import Policy, Sampler
from bepa_torchrl.rollout.weight_sync import ServiceWeightSync, Weights
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.pool.env_worker_pool import EnvWorkerPool
from bepa_torchrl.scale.rollouts.queue_service import MAX_WORKERS
from bepa_torchrl.scale.rollouts.ray_address import LOCAL
from bepa_torchrl.scale.rollouts.ray_cluster import DESKTOPS, connect
from bepa_torchrl.scale.rollouts.ray_gpus import check_node, other_gpus
from bepa_torchrl.scale.rollouts.ray_queue import RayQueue
from bepa_torchrl.scale.rollouts.ray_services import ServicePool
from bepa_torchrl.scale.rollouts.routing import SLACK, routing_metrics
from bepa_torchrl.scale.rollouts.task_queue import Order
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

_STOP_SECONDS = 10.0  #: for the episodes that are running when the training ends


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRollouts:
    """What plays rollouts in a Ray cluster: workers with desktops, and rollout services.

    Args:
        address: the address of the cluster's head, ``auto`` for the one of this machine, or :data:`LOCAL`.
        make_policy: makes a policy that samples, in a rollout service's process.
        make_vector: makes one desktop, in a worker's process.
        workers: actors with desktops, spread over the nodes; None: one on each node that has the resource
            :data:`~bepa_torchrl.scale.rollouts.ray_cluster.DESKTOPS`, with that many desktops, also on nodes that join.
        desktops: episodes that run at once, over all workers; not read if ``workers`` is None, except at :data:`LOCAL`.
        replicas: rollout services.
        gpus_per_replica: Ray's ``num_gpus`` of each.
        shrink_after: as of :class:`~bepa_torchrl.scale.rollouts.pool.env_worker_pool.EnvWorkerPool`.
        max_rows: rows per call of a service's policy.
        answer_seconds: within which a service's policy answers a call.
        trainer_gpus: GPUs of this machine that no rollout service may get, as in CUDA_VISIBLE_DEVICES.
        gpus: all that this process sees, in the same form; read at :data:`LOCAL` only.
        slack: as of :func:`~bepa_torchrl.scale.rollouts.routing.choose`.
    """

    address: str
    make_policy: Callable[[], Sampler]
    make_vector: Callable[[], DesktopVector]
    workers: int | None
    desktops: int
    replicas: int
    gpus_per_replica: float
    shrink_after: float | None
    max_rows: int
    answer_seconds: float
    trainer_gpus: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    slack: int = SLACK

    def join(self) -> None:
        """Connects to the cluster.

        Raises:
            DesktopError: there is none. ValueError: more workers than desktops, or than one queue serves; or Ray on
                this machine gives away GPUs of the trainer.
        """
        if self.workers is not None and self.workers > min(self.desktops, MAX_WORKERS):
            raise ValueError(
                f"expected at most {MAX_WORKERS} workers, and not more than desktops ({self.desktops}), got "
                f"{self.workers}; lower cluster.workers: a worker can have many desktops"
            )
        if self.address == LOCAL:
            with other_gpus(self.trainer_gpus, self.gpus) as options:
                connect(log_to_driver=False, resources={DESKTOPS: self.desktops}, **options)
        else:
            connect(self.address, log_to_driver=False)
            if self.gpus_per_replica:
                check_node(self.trainer_gpus)

    def services(self) -> ServicePool:
        """Starts the rollout services."""
        return ServicePool(
            self.make_policy,
            replicas=self.replicas,
            max_rows=self.max_rows,
            answer_seconds=self.answer_seconds,
            num_cpus=0,
            num_gpus=self.gpus_per_replica,
        )

    def worker_pool(self, queue: Any, services: ServicePool, plan: RolloutPlan) -> EnvWorkerPool:
        """Starts the workers.

        Args:
            queue: the queue's actor, or another that has its methods.
            services: the services of :meth:`services`.
            plan: the run's tasks and seeds.
        """
        return EnvWorkerPool(
            queue,
            services.actors,
            plan,
            self.make_vector,
            service_seconds=services.call_seconds,
            slack=self.slack,
            workers=self.workers,
            desktops=None if self.workers is None else -(-self.desktops // self.workers),
            shrink_after=self.shrink_after,
            resources={"num_cpus": 0},
        )


def ray_collector(
    env: EnvBase,
    policy: Policy,
    tasks: Sequence[Task],
    rollouts: RayRollouts,
    *,
    max_staleness: int,
    order: Order,
    weights: Weights | None = None,
    **options: Any,
) -> AsyncGroupCollector:
    """A collector whose episodes are played by actors; its ``shutdown`` ends them and leaves the cluster.

    Args:
        env: as of :class:`~bepa_torchrl.rollout.group_collector.GroupRolloutCollector`; not used for rollouts.
        policy: the trainer's.
        tasks: the training tasks.
        rollouts: what plays the episodes.
        max_staleness: batches that may be trained between a group's admission and its own training.
        order: see :class:`~bepa_torchrl.scale.rollouts.task_queue.TaskQueue`.
        weights: as of :class:`~bepa_torchrl.rollout.weight_sync.ServiceWeightSync`.
        options: further arguments of the collector.

    Raises:
        DesktopError: there is no cluster at the address.
        ValueError: more workers than desktops.
    """
    rollouts.join()
    queue = RayQueue(batch_groups=options["groups"], max_staleness=max_staleness, order=order)
    services = rollouts.services()
    pools: list[EnvWorkerPool] = []

    def stop() -> None:
        for pool in pools:
            pool.stop(_STOP_SECONDS)
        services.stop()
        queue.stop()
        ray.shutdown()

    def describe() -> dict[str, Any]:
        return {"workers": pools[0].describe(), "rollout services": services.describe()}

    collector = AsyncGroupCollector(
        env,
        policy,
        tasks,
        queue=queue,
        weight_sync_schemes={"policy": ServiceWeightSync(services.publish, weights)},
        on_shutdown=stop,
        on_restart=lambda: pools[0].restart_workers(),
        on_metrics=services.engine_metrics,
        on_routing=lambda: routing_metrics(services.answered(), pools[0].drain_moved()),
        on_stall=describe,
        check=lambda: pools[0].check(),
        **options,
    )
    pools.append(rollouts.worker_pool(queue.actor, services, collector.plan))
    return collector


def ray_queue(address: str, **options: Any) -> tuple[RayQueue, Callable[[], None]]:
    """A queue as an actor of a cluster, and a function that ends it and leaves the cluster.

    Args:
        address: as of :class:`RayRollouts`.
        options: arguments of :class:`~bepa_torchrl.scale.rollouts.task_queue.TaskQueue`.

    Raises:
        DesktopError: there is no cluster at the address.
    """
    connect(None if address == LOCAL else address, log_to_driver=False)
    queue = RayQueue(**options)

    def stop() -> None:
        queue.stop()
        ray.shutdown()

    return queue, stop
