"""Asynchronous rollouts in one process: queue, one rollout service and one worker, all of them threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchrl.envs import EnvBase

from bepa_torchrl.policies.base import Policy, Sampler
from bepa_torchrl.rollout.weight_sync import ServiceWeightSync, Weights
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.rollout_service import ANSWER_SECONDS, RolloutService
from bepa_torchrl.scale.rollouts.task_queue import Order
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

_STOP_SECONDS = 10.0  #: for the episodes that are running when the training ends


def local_collector(
    env: EnvBase,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    sampler: Sampler,
    make_vector: Callable[[], DesktopVector],
    desktops: int,
    max_rows: int,
    answer_seconds: float = ANSWER_SECONDS,
    max_staleness: int,
    order: Order,
    weights: Weights | None = None,
    **options: Any,
) -> AsyncGroupCollector:
    """A collector whose episodes are played by threads of this process; its ``shutdown`` ends them.

    Args:
        env: as of :class:`~bepa_torchrl.rollout.group_collector.GroupRolloutCollector`; not used for rollouts.
        policy: the trainer's.
        tasks: the training tasks.
        sampler: samples the rollouts; not ``policy``, whose weights change while episodes run.
        make_vector: makes one desktop.
        desktops: episodes that run at once.
        max_rows: rows per call of ``sampler``, which answers within ``answer_seconds``.
        max_staleness: batches that may be trained between a group's admission and its own training.
        order: see :class:`~bepa_torchrl.scale.rollouts.task_queue.TaskQueue`.
        weights: as of :class:`~bepa_torchrl.rollout.weight_sync.ServiceWeightSync`.
        options: further arguments of the collector.

    Raises:
        ValueError: ``sampler`` is ``policy``.
    """
    if sampler is policy:
        raise ValueError("asynchronous rollouts require a sampler with its own weights, got the policy in training")
    queue = QueueService(batch_groups=options["groups"], max_staleness=max_staleness, order=order)
    service = RolloutService(sampler, max_rows=max_rows, deadline=answer_seconds, require_weights=True)
    workers: list[EnvWorker] = []

    def stop() -> None:
        for worker in workers:
            worker.stop(_STOP_SECONDS)
        service.close()

    def describe() -> dict[str, Any]:
        states = {worker.name: worker.describe() for worker in workers}
        return {"workers": states, "rollout service": service.describe()}

    collector = AsyncGroupCollector(
        env,
        policy,
        tasks,
        queue=queue,
        weight_sync_schemes={"policy": ServiceWeightSync(service.load_weights, weights)},
        on_shutdown=stop,
        on_metrics=lambda: [service.engine_metrics()],
        on_stall=describe,
        check=lambda: workers[0].check(),
        **options,
    )
    workers.append(EnvWorker("local", queue, service, collector.plan, make_vector, desktops=desktops, poll=1.0))
    return collector
