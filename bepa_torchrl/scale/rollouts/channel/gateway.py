"""RolloutGateway: the queue as workers of a rollout cluster see it, and the weights for its rollout services.

It is an ordinary object, or a Ray actor. The queue's methods never raise because of the connection: without one there
is nothing to lease, and a result that could not be sent in time counts as late.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.scale.rollouts.channel.client import ChannelClient
from bepa_torchrl.scale.rollouts.channel.errors import (
    BrokenConnectionError,
    ProtocolError,
    RunEndedError,
    TrainerGoneError,
)
from bepa_torchrl.scale.rollouts.channel.messages import Message
from bepa_torchrl.scale.rollouts.channel.plans import decode_lease
from bepa_torchrl.scale.rollouts.channel.results import encode_result
from bepa_torchrl.scale.rollouts.channel.weights import Weights, WeightsTag
from bepa_torchrl.scale.rollouts.queue_state import DesktopDemand
from bepa_torchrl.scale.rollouts.task_queue import Lease, StaleTicketError

_log = logging.getLogger(__name__)
_PATIENCE = 15.0  #: seconds for a request that the expiry of its lease replaces
_RESULT_PATIENCE = 45.0  #: for a result: its lease is about to expire then
_WEIGHTS_PATIENCE = 600.0
_RENEW_EVERY = 15.0  #: seconds between renewals of leases whose weights are not loaded yet
_LOST = (BrokenConnectionError, TrainerGoneError, RunEndedError)  #: the loop that asks for weights raises the last two


@dataclass(slots=True)
class _Held:
    """Leases of a worker for which the weights are not loaded yet."""

    leases: list[Lease]
    requires: WeightsTag
    renewed: float


class RolloutGateway:
    """The queue's methods (:class:`~bepa_torchrl.scale.rollouts.env_worker.QueueClient`), through the channel.

    A lease reaches a worker only after :meth:`next_weights` was informed that the weights of its admission are loaded.

    Args:
        address: (host, port) of the trainer.
        token: the shared secret.
        wait: seconds without a connection after which the trainer is given up.
        note: gets a line when the connection is made or lost.
    """

    def __init__(
        self, address: tuple[str, int], token: bytes, *, wait: float = 600.0, note: Callable[[str], None] = _log.info
    ) -> None:
        self._client = ChannelClient(address, token, wait=wait, note=note)
        self._name = f"{socket.gethostname()}-{secrets.token_hex(2)}"
        self._changed = threading.Condition()
        self._loaded: WeightsTag | None = None
        self._held: dict[str, _Held] = {}

    # --- for workers --------------------------------------------------------------------------------------------

    def lease(self, worker: str, limit: int, timeout: float) -> list[Lease]:
        """Waits up to ``timeout`` seconds for slots, and for the weights that they require; empty without them."""
        end = monotonic() + timeout
        if not self._wait_for(lambda: self._loaded is not None, end):
            return []
        held = self._held.get(worker) or self._request_leases(worker, limit, end)
        if held is None:
            self._wait_for(lambda: False, end)  # the connection may be lost, which must not make the worker ask at once
            return []
        ready = self._wait_for(lambda: self._usable(held.requires), end)
        with self._changed:
            stale = held.requires.run != self._client.run
            if ready or stale:
                self._held.pop(worker, None)
                return [] if stale else held.leases
            self._held[worker] = held
        if monotonic() - held.renewed > _RENEW_EVERY:
            held.renewed = monotonic()
            self.renew([lease.ticket for lease in held.leases])
        return []

    def renew(self, tickets: list[str]) -> list[str]:
        """Extends leases; returns the tickets whose lease has ended, none if that is not known."""
        reply = self._try("renew", {"tickets": tickets})
        return [] if reply is None else [str(ticket) for ticket in reply.fields["ended"]]

    def complete(self, ticket: str, result: Any) -> None:
        """Sends a result. Raises StaleTicketError: its lease has ended, or the trainer could not be reached in time."""
        try:
            fields, blobs = _encoded(result)
            self._client.request("complete", {"ticket": ticket, **fields}, blobs, patience=_RESULT_PATIENCE)
        except _LOST as error:
            raise StaleTicketError(f"the result of the lease {ticket} could not be sent: {error}") from error
        except StaleTicketError:
            raise
        except (ValueError, TypeError) as error:  # it cannot be encoded, is too long, or is refused
            self.fail(ticket, str(error))

    def fail(self, ticket: str, reason: str, result: Any = None) -> None:
        """Ends a lease without a usable result. Raises StaleTicketError: it has ended."""
        fields, blobs = _encoded(result)
        self._try("fail", {"ticket": ticket, "reason": reason, **fields}, blobs)

    def release(self, worker: str, reason: str) -> int:
        """Ends all leases of a worker; returns how many, 0 if that is not known."""
        with self._changed:
            self._held.pop(worker, None)
        reply = self._try("release", {"worker": f"{self._name}/{worker}", "reason": reason})
        return 0 if reply is None else int(reply.fields["count"])

    def resize(self, worker: str, desktops: int) -> None:
        """A worker has so many desktops now."""
        self._try("resize", {"worker": f"{self._name}/{worker}", "desktops": desktops})

    def demand(self) -> DesktopDemand | None:
        """What desktops of all rollout clusters are needed for; None if that is not known."""
        reply = self._try("demand", {})
        if reply is None:
            return None
        playing, waiting, busy, held_up = (reply.fields[name] for name in DesktopDemand._fields)
        return DesktopDemand(int(playing), int(waiting), float(busy), float(held_up))

    # --- for the program that plays the run ---------------------------------------------------------------------

    def run(self) -> Mapping[str, Any]:
        """The run's ``plan`` and ``settings``. Raises as :meth:`next_weights`."""
        return self._client.request("run", {}, patience=_WEIGHTS_PATIENCE).fields

    def next_weights(self, loaded: WeightsTag | None, timeout: float) -> Weights | None:
        """Waits up to ``timeout`` seconds for other weights than those that all rollout services have loaded.

        Raises:
            RunEndedError: there is nothing more to play.
            TrainerGoneError, BrokenConnectionError: no trainer. ProtocolError: the trainer cannot be understood.
        """
        with self._changed:
            self._loaded = loaded
            self._changed.notify_all()
        known = None if loaded is None else list(loaded)
        asked = {"loaded": known, "timeout": timeout}
        reply = self._client.request("weights", asked, patience=_WEIGHTS_PATIENCE).fields
        if reply["weights"] is None:
            return None
        tag = WeightsTag(str(reply["weights"][0]), int(reply["weights"][1]))
        parts = []
        for number, size in enumerate(reply["parts"]):
            part = self._part(tag, number, int(size))
            if part is None:
                return None
            parts.append(part)
        return Weights(tag, parts)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    # ------------------------------------------------------------------------------------------------------------

    def _part(self, tag: WeightsTag, number: int, size: int) -> bytes | None:
        """A part of the weights; None if newer ones have replaced them."""
        part = bytearray()
        while len(part) < size:
            asked = {"weights": list(tag), "part": number, "offset": len(part)}
            reply = self._client.request("chunk", asked, patience=_WEIGHTS_PATIENCE)
            if reply.fields["replaced"]:
                return None
            if len(reply.blobs) != 1 or not 0 < len(reply.blobs[0]) <= size - len(part):
                raise ProtocolError(f"expected a chunk of weights of at most {size - len(part)} bytes")
            part += reply.blobs[0]
        return bytes(part)

    def _request_leases(self, worker: str, limit: int, end: float) -> _Held | None:
        wait = max(0.0, end - monotonic())
        asked = {"worker": f"{self._name}/{worker}", "limit": limit, "timeout": wait}
        reply = self._try("lease", asked)
        if reply is None or not reply.fields["leases"] or reply.fields["weights"] is None:
            return None
        run, version = reply.fields["weights"]
        leases = [decode_lease(lease) for lease in reply.fields["leases"]]
        return _Held(leases, WeightsTag(str(run), int(version)), monotonic())

    def _try(self, kind: str, fields: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> Message | None:
        """A reply; None if there is none in time."""
        try:
            return self._client.request(kind, fields, blobs, patience=_PATIENCE)
        except _LOST:
            return None

    def _usable(self, requires: WeightsTag) -> bool:
        """Whether the services have these weights or newer ones."""
        loaded = self._loaded
        return loaded is not None and loaded.run == requires.run and loaded.version >= requires.version

    def _wait_for(self, condition: Callable[[], bool], end: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, end - monotonic()))


def _encoded(result: Any) -> tuple[dict[str, Any], Sequence[bytes]]:
    """The fields ``episode`` and ``outcome`` (of an evaluation) of a message, both None without a result, and blobs."""
    if not isinstance(result, EpisodeResult):
        return {"episode": None, "outcome": result}, ()
    episode, blobs = encode_result(result)
    return {"episode": episode, "outcome": None}, blobs
