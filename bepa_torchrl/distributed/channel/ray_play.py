"""The rollout side of a run on a Ray cluster: the gateway, the rollout services and the workers are its actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import ray
from ray.exceptions import RayTaskError

from bepa_torchrl.distributed.channel.gateway import RolloutGateway
from bepa_torchrl.distributed.channel.play import STOP_SECONDS, WeightsSource, follow
from bepa_torchrl.distributed.env_worker import RolloutPlan
from bepa_torchrl.distributed.ray_cluster import CALLERS, ActorClient
from bepa_torchrl.distributed.ray_rollouts import join, worker_pool
from bepa_torchrl.distributed.ray_services import ServicePool
from bepa_torchrl.policies.base import RolloutPolicy
from osworld_gym.vector import DesktopVector

_WEIGHTS_SECONDS = 3600.0  #: for one version of the weights to arrive


def play_on_ray(
    address: tuple[str, int],
    token: bytes,
    plan: RolloutPlan,
    *,
    cluster: str,
    wait: float,
    make_policy: Callable[[], RolloutPolicy],
    make_vector: Callable[[], DesktopVector],
    workers: int | None,
    desktops: int,
    replicas: int,
    gpus_per_replica: float,
    max_rows: int,
    note: Callable[[str], None],
) -> None:
    """Plays a run by actors of a Ray cluster, until it ends; one that exits is started again.

    Args:
        address: (host, port) of the trainer.
        token: the shared secret.
        plan: of the run.
        cluster: address of the Ray cluster's head, ``auto``, or ``local`` for one that this process starts.
        wait: seconds without a connection after which the trainer is given up.
        make_policy: makes a policy that samples, in a rollout service's process.
        make_vector: makes one desktop, in a worker's process.
        workers: as of :func:`~bepa_torchrl.distributed.ray_rollouts.ray_collector`.
        desktops: the same.
        replicas: rollout services.
        gpus_per_replica: Ray's ``num_gpus`` of each.
        max_rows: rows per call of a service's policy.
        note: as of :func:`.play.follow`.

    Raises:
        DesktopError: there is no cluster, or an actor fails. ValueError: more workers than desktops.
        TrainerGoneError, BrokenConnectionError, ProtocolError: as of :func:`.play.follow`.
    """
    join(cluster, workers, desktops)
    options = {"num_cpus": 0, "max_concurrency": CALLERS, "max_restarts": -1, "max_task_retries": -1}
    gateway = ray.remote(RolloutGateway).options(**options).remote(address, token, wait=wait)
    services = ServicePool(make_policy, replicas=replicas, max_rows=max_rows, num_cpus=0, num_gpus=gpus_per_replica)
    pool = worker_pool(gateway, services, plan, make_vector, workers, desktops)
    try:
        follow(cast(WeightsSource, ActorClient(gateway, _WEIGHTS_SECONDS)), services.publish, note=note)
    except RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise
    finally:
        pool.stop(STOP_SECONDS)
        services.stop()
        ray.kill(gateway)
        ray.shutdown()
