"""The training side of a run whose rollouts are played by other clusters: a collector whose queue is also served."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from torchrl.envs import EnvBase

from bepa_torchrl.policies.base import Policy
from bepa_torchrl.rollout.weight_sync import ServiceWeightSync, Weights
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector, GroupSource
from bepa_torchrl.scale.rollouts.remote.queue_server import QueueServer, ServedQueue
from bepa_torchrl.scale.rollouts.remote.weights import PublishedWeights
from bepa_torchrl.scale.wire.access import Tls, address_text, plain_warning
from osworld_gym.tasks.task import Task


class SharedQueue(ServedQueue, GroupSource, Protocol):
    """The queue as the trainer and the rollout clusters use it."""


def served_collector(
    env: EnvBase,
    policy: Policy,
    tasks: Sequence[Task],
    *,
    queue: SharedQueue,
    address: tuple[str, int],
    token: bytes,
    tls: Tls | None,
    settings: Mapping[str, Any],
    on_end: Callable[[], None],
    note: Callable[[str], None],
    weights: Weights | None = None,
    **options: Any,
) -> AsyncGroupCollector:
    """A collector whose episodes are played by the rollout clusters that connect; its ``shutdown`` sends them the end.

    Args:
        env: as of :class:`~bepa_torchrl.rollout.group_collector.GroupRolloutCollector`; not used for rollouts.
        policy: the trainer's.
        tasks: the training tasks.
        queue: the run's queue.
        address: (host, port) to listen on.
        token: the shared secret.
        tls: certificate and key; None: without TLS.
        settings: what rollout clusters must know in addition to the plan, JSON-compatible.
        on_end: called after the end was sent to the rollout clusters.
        note: gets a line when a rollout cluster connects, is refused, or leaves.
        weights: as of :class:`~bepa_torchrl.rollout.weight_sync.ServiceWeightSync`.
        options: further arguments of the collector.

    Raises:
        OSError: the address cannot be used.
    """
    published = PublishedWeights(secrets.token_hex(8))
    servers: list[QueueServer] = []

    def stop() -> None:
        for server in servers:
            server.close()
        on_end()

    collector = AsyncGroupCollector(
        env,
        policy,
        tasks,
        queue=queue,
        weight_sync_schemes={"policy": ServiceWeightSync(published.publish, weights)},
        on_shutdown=stop,
        on_stall=lambda: {"rollout clusters": [peer for server in servers for peer in server.peers()]},
        **options,
    )
    server = QueueServer(queue, published, collector.plan, settings, address=address, token=token, tls=tls, note=note)
    servers.append(server)
    note(f"waiting for rollout clusters at {address_text(server.address)} (bepa rollouts --connect)")
    if warning := plain_warning(server.address, tls, "set cluster.tls_certificate and cluster.tls_key"):
        note(warning)
    return collector
