"""The rollout side of a run: weights from the trainer into rollout services, until the run ends."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter
from typing import Protocol

from torch import Tensor

from bepa_torchrl.policies.base import Sampler
from bepa_torchrl.rollout.weight_sync import Publish
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.scale.rollouts.remote.gateway import RolloutGateway
from bepa_torchrl.scale.rollouts.remote.weights import Weights, WeightsTag, decode_weights
from bepa_torchrl.scale.rollouts.rollout_service import ANSWER_SECONDS, RolloutService
from bepa_torchrl.scale.wire.errors import RunEndedError
from osworld_gym.vector import DesktopVector

STOP_SECONDS = 10.0  #: for the episodes that are running when the run ends
_POLL = 15.0  #: seconds that one request for weights waits
_WORKER_POLL = 5.0  #: seconds that one request for leases waits


class WeightsSource(Protocol):
    """How the weights reach the program that plays (:class:`.gateway.RolloutGateway`)."""

    def next_weights(self, loaded: WeightsTag | None, held: Collection[bytes], timeout: float) -> Weights | None: ...


def follow(source: WeightsSource, publish: Publish, *, check: Callable[[], None], note: Callable[[str], None]) -> None:
    """Loads each version of the weights into the rollout services, until the run ends.

    Args:
        source: the trainer's weights.
        publish: loads weights into all rollout services.
        check: raises DesktopError if no desktop is left.
        note: gets a line per version, and at the end.

    Raises:
        TrainerGoneError, BrokenConnectionError: no trainer. ProtocolError: the trainer cannot be understood.
        ValueError: the weights are those of another policy. DesktopError: a rollout service fails, or as ``check``.
    """
    loaded: WeightsTag | None = None
    held: dict[bytes, Tensor] = {}
    while True:
        try:
            weights = source.next_weights(loaded, frozenset(held), _POLL)
        except RunEndedError as end:
            note(str(getattr(end, "cause", end)))  # Ray's error has the traceback of the actor as its text
            return
        check()
        if weights is None:
            continue
        start = perf_counter()
        held, loaded = decode_weights(weights, held), weights.tag
        publish(((name, held[key]) for name, key in weights.names.items()), loaded.version)
        size = sum(map(len, weights.tensors.values())) / 1e6
        note(f"weights of version {loaded.version}: {size:.1f} MB, loaded in {perf_counter() - start:.1f} s")


def play_in_threads(
    gateway: RolloutGateway,
    plan: RolloutPlan,
    *,
    sampler: Sampler,
    make_vector: Callable[[], DesktopVector],
    desktops: int,
    max_rows: int,
    answer_seconds: float = ANSWER_SECONDS,
    note: Callable[[str], None],
) -> None:
    """Plays a run by threads of this process, until it ends. Raises as :func:`follow`.

    Args:
        gateway: the connection to the trainer; not closed.
        plan: the plan of the run.
        sampler: samples the rollouts.
        make_vector: makes one desktop.
        desktops: episodes that run at once.
        max_rows: rows per call of ``sampler``.
        answer_seconds: within which ``sampler`` answers a call.
        note: as of :func:`follow`.
    """
    service = RolloutService(sampler, max_rows=max_rows, deadline=answer_seconds)
    worker = EnvWorker("local", gateway, service, plan, make_vector, desktops=desktops, poll=_WORKER_POLL)
    try:
        follow(gateway, service.load_weights, check=worker.check, note=note)
    finally:
        worker.stop(STOP_SECONDS)
        service.close()
