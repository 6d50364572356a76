"""Rollout services that are actors, as a worker on Ray reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, cast

from bepa_torchrl.scale.rollouts.named_images import NamedCalls, NamingClient
from bepa_torchrl.scale.rollouts.ray_cluster import ActorClient
from bepa_torchrl.scale.rollouts.rollout_service import RolloutClient
from bepa_torchrl.scale.rollouts.routing import Service, ServiceRouter


class _NoRetries:
    """An actor whose calls fail when it exits, instead of waiting until Ray has started it again."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._actor, name).options(max_task_retries=0)


def ray_services(actors: Sequence[Any], seconds: float, slack: int) -> RolloutClient | ServiceRouter:
    """The services of a run. There is nothing to choose with one: its calls wait for it when it is started again.

    Args:
        actors: the services' actors.
        seconds: deadline of a call, and that a turn waits if all services are away.
        slack: as of :func:`.routing.choose`.
    """
    if len(actors) == 1:
        return _client(actors[0], seconds)
    return ServiceRouter([_service(actor, seconds) for actor in actors], slack=slack, seconds=seconds)


def _service(actor: Any, seconds: float) -> Service:
    def requests() -> Future[int | None]:
        asked: Future[int | None] = actor.requests.remote().future()
        return asked

    return Service(_client(_NoRetries(actor), seconds), requests)


def _client(actor: Any, seconds: float) -> NamingClient:
    return NamingClient(cast(NamedCalls, ActorClient(actor, seconds)))
