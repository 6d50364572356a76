"""The collector of ``collect.mode=async``: its rollouts are played by threads, by Ray actors, or by other clusters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torchrl.envs import EnvBase

from bepa_torchrl.experiment.gpus import trainer_gpus, visible_gpus
from bepa_torchrl.experiment.method_handle import NOTICE
from bepa_torchrl.experiment.preflight import TLS_SETTINGS
from bepa_torchrl.experiment.rollout_side import shared_settings
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import by_ray, cluster_address
from bepa_torchrl.policies.base import Policy, Sampler
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.local_rollouts import local_collector
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.rollout_service import ANSWER_SECONDS
from bepa_torchrl.scale.wire.access import parse_address, read_tls, read_token
from osworld_gym.extensions import call_with_imports
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

if TYPE_CHECKING:
    from bepa_torchrl.scale.rollouts.ray_rollouts import RayRollouts
    from bepa_torchrl.scale.rollouts.remote.collector import SharedQueue


def async_collector(
    settings: Settings,
    env: EnvBase,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    make_policy: Callable[[], Sampler],
    make_vector: Callable[[], DesktopVector],
    **options: Any,
) -> AsyncGroupCollector:
    """Builds the collector, and what plays its episodes; its ``shutdown`` ends both.

    Args:
        settings: the settings of the run.
        env: as of :class:`~bepa_torchrl.rollout.group_collector.GroupRolloutCollector`; not used for rollouts.
        policy: the trainer's.
        tasks: the training tasks.
        make_policy: makes a policy that samples, also in another process.
        make_vector: makes one desktop, also in another process.
        options: further arguments of the collector.

    Raises:
        DesktopError: there is no cluster at ``cluster.address``. OSError: ``cluster.listen`` cannot be used.
    """
    collect, cluster = settings.collect, settings.cluster
    options |= {
        "max_staleness": collect.max_staleness,
        "order": collect.order,
        "stall_seconds": collect.stall_timeout,
    }
    if cluster.listen is not None:
        return _listening_collector(settings, env, policy, tasks, **options)
    if cluster.address is None:
        options |= {"desktops": settings.env.desktops, "make_vector": make_vector} | sampling(settings)
        return local_collector(env, policy, tasks, sampler=make_policy(), **options)
    from bepa_torchrl.scale.rollouts.ray_rollouts import ray_collector  # requires the extra ``ray``

    rollouts = ray_rollouts(settings, make_policy, make_vector)
    if settings.train.ranks > 1 and settings.policy.device != "cpu" and not by_ray():  # Ray knows its own ranks' GPUs
        rollouts = replace(rollouts, trainer_gpus=trainer_gpus(settings), gpus=visible_gpus())
    return ray_collector(env, policy, tasks, rollouts, **options)


def ray_rollouts(
    settings: Settings, make_policy: Callable[[], Sampler], make_vector: Callable[[], DesktopVector]
) -> RayRollouts:
    """What plays the rollouts in the Ray cluster at ``cluster.address``; arguments as of :func:`async_collector`."""
    from bepa_torchrl.scale.rollouts.ray_rollouts import RayRollouts  # requires the extra ``ray``

    cluster, address = settings.cluster, cluster_address(settings)
    assert address is not None
    return RayRollouts(
        address=address,
        make_policy=partial(call_with_imports, settings.import_, make_policy),
        make_vector=partial(call_with_imports, settings.import_, make_vector),
        workers=cluster.workers,
        desktops=settings.env.desktops,
        replicas=cluster.replicas,
        gpus_per_replica=cluster.gpus_per_replica,
        shrink_after=cluster.shrink_after,
        slack=cluster.replica_slack,
        **sampling(settings),
    )


def sampling(settings: Settings) -> dict[str, Any]:
    """How a rollout service samples: rows per call, and within how many seconds a call is answered."""
    policy = settings.policy
    if policy.rollout == "transformers":
        return {"max_rows": policy.max_rows, "answer_seconds": ANSWER_SECONDS}
    # an engine that has exited is started again, and may then stall
    return {"max_rows": policy.max_rows, "answer_seconds": ANSWER_SECONDS + 2 * policy.engine.timeout}


def _listening_collector(
    settings: Settings,
    env: EnvBase,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    max_staleness: int,
    order: str,
    **options: Any,
) -> AsyncGroupCollector:
    from bepa_torchrl.scale.rollouts.remote.collector import served_collector  # requires the extra ``wire``

    cluster = settings.cluster
    assert cluster.listen is not None
    bounds = {"batch_groups": settings.collect.groups, "max_staleness": max_staleness, "order": order}
    queue, end = _shared_queue(cluster_address(settings), **bounds)
    return served_collector(
        env,
        policy,
        tasks,
        queue=queue,
        address=parse_address(cluster.listen),
        token=read_token(None if cluster.token_file is None else Path(cluster.token_file)),
        tls=read_tls(cluster.tls_certificate, cluster.tls_key, TLS_SETTINGS),
        settings=shared_settings(settings, policy.renderer.image_scaling),
        on_end=end,
        note=_notice,
        **options,
    )


def _shared_queue(address: str | None, **options: Any) -> tuple[SharedQueue, Callable[[], None]]:
    """The queue, in this process or in the Ray cluster at the address, and a function that ends it."""
    if address is None:
        return QueueService(**options), lambda: None
    from bepa_torchrl.scale.rollouts.ray_rollouts import ray_queue  # requires the extra ``ray``

    queue, end = ray_queue(address, **options)
    return cast("SharedQueue", queue), end


def _notice(line: str) -> None:
    sys.stdout.write(f"{NOTICE}{line}\n")
    sys.stdout.flush()
