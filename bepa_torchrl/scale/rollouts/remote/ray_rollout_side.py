"""The rollout side of a run on a Ray cluster: the gateway, the rollout services and the workers are its actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import ray
from ray.exceptions import RayTaskError

from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.ray_cluster import CALLERS, ActorClient, check_version
from bepa_torchrl.scale.rollouts.ray_rollouts import RayRollouts
from bepa_torchrl.scale.rollouts.remote.gateway import RolloutGateway
from bepa_torchrl.scale.rollouts.remote.rollout_side import STOP_SECONDS, WeightsSource, follow
from bepa_torchrl.scale.wire.access import Access
from osworld_gym import __version__

_WEIGHTS_SECONDS = 3600.0  #: for one version of the weights to arrive, in addition to the wait for a trainer


class _Gateway(RolloutGateway):
    """The gateway as an actor."""

    def __init__(self, version: str, access: Access, *, wait: float) -> None:
        check_version(version)
        super().__init__(access, wait=wait)


def play_on_ray(
    access: Access,
    plan: RolloutPlan,
    *,
    rollouts: RayRollouts,
    wait: float,
    note: Callable[[str], None],
) -> None:
    """Plays a run by actors of a Ray cluster, until it ends; one that exits is started again.

    Args:
        access: to the trainer.
        plan: the plan of the run.
        rollouts: what plays.
        wait: seconds without a connection after which the trainer is given up.
        note: as of :func:`.rollout_side.follow`.

    Raises:
        DesktopError: there is no cluster, or an actor fails. ValueError: more workers than desktops.
        TrainerGoneError, BrokenConnectionError, ProtocolError: as of :func:`.rollout_side.follow`.
    """
    rollouts.join()
    options = {"num_cpus": 0, "max_concurrency": CALLERS, "max_restarts": -1, "max_task_retries": -1}
    actor: Any = ray.remote(_Gateway)
    gateway = actor.options(**options).remote(__version__, access, wait=wait)
    services = rollouts.services()
    pool = rollouts.worker_pool(gateway, services, plan)
    try:
        source = cast(WeightsSource, ActorClient(gateway, _WEIGHTS_SECONDS + wait, name="the gateway"))
        follow(source, services.publish, check=pool.check, note=note)
    except RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from error
        raise
    finally:
        pool.stop(STOP_SECONDS)
        services.stop()
        ray.kill(gateway)
        ray.shutdown()
