"""RolloutGateway: the queue as workers of a rollout cluster see it, and the weights for its rollout services.

It is an ordinary object, or a Ray actor. The queue's methods never raise because of the connection: without one there
is nothing to lease, and a result that could not be sent in time counts as late.
"""

from __future__ import annotations

import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.scale.rollouts.queue_state import DesktopDemand
from bepa_torchrl.scale.rollouts.remote.link import TrainerLink
from bepa_torchrl.scale.rollouts.remote.plans import decode_lease
from bepa_torchrl.scale.rollouts.remote.results import encode_result
from bepa_torchrl.scale.rollouts.remote.weights import Weights, WeightsTag
from bepa_torchrl.scale.rollouts.task_queue import Lease, StaleTicketError
from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.scale.wire.content import Blobs
from bepa_torchrl.scale.wire.errors import BrokenConnectionError, RunEndedError, TrainerGoneError

_log = logging.getLogger(__name__)
_PATIENCE = 15.0  #: seconds for a request that the expiry of its lease replaces
_RESULT_PATIENCE = 45.0  #: for a result: its lease is about to expire then
_WEIGHTS_PATIENCE = 600.0  #: for the run and its weights, at least; without a connection ``wait`` ends it
_BEYOND_WAIT = 60.0  #: in addition to ``wait``: the last attempt to connect begins before it is over
_RENEW_EVERY = 15.0  #: seconds between renewals of leases whose weights are not loaded yet
_LOST = (BrokenConnectionError, TrainerGoneError, RunEndedError)  #: the loop that asks for weights raises the last two


@dataclass(slots=True)
class _Held:
    """Leases of a worker for which the weights are not loaded yet."""

    leases: list[Lease]
    requires: WeightsTag
    renewed: float


class RolloutGateway:
    """The queue's methods (:class:`~bepa_torchrl.scale.rollouts.env_worker.QueueClient`), through the wire.

    A lease reaches a worker only after :meth:`next_weights` was informed that the weights of its admission are loaded.

    Args:
        access: to the trainer.
        wait: seconds without a connection after which the trainer is given up.
        note: gets a line when the connection is made or lost.
    """

    def __init__(self, access: Access, *, wait: float = 600.0, note: Callable[[str], None] = _log.info) -> None:
        self._link = TrainerLink(access, wait=wait, note=note)
        self._patience = max(_WEIGHTS_PATIENCE, wait + _BEYOND_WAIT)
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
        if held.requires.run != self._link.trainer:
            held.leases.clear()
        elif monotonic() - held.renewed > _RENEW_EVERY:
            held.renewed = monotonic()
            ended = self.renew([lease.ticket for lease in held.leases])
            held.leases = [lease for lease in held.leases if lease.ticket not in ended]
        number = limit if ready else 0  # a worker may have fewer desktops than when it asked for them
        leases, held.leases = held.leases[:number], held.leases[number:]
        with self._changed:
            self._held.pop(worker, None)
            if held.leases:
                self._held[worker] = held
        return leases

    def renew(self, tickets: list[str]) -> list[str]:
        """Extends leases; returns the tickets whose lease has ended, none if that is not known."""
        reply = self._try("renew", {"tickets": tickets})
        return [] if reply is None else [str(ticket) for ticket in reply["ended"]]

    def complete(self, ticket: str, result: Any) -> None:
        """Sends a result; without a usable one the lease is failed.

        Raises:
            StaleTicketError: the lease has ended, also by the trainer's refusal of the result, or the trainer could not
                be reached in time.
        """
        try:
            fields, blobs = _encoded(result)
            self._link.request("complete", {"ticket": ticket, **fields}, blobs, patience=_RESULT_PATIENCE)
        except _LOST as error:
            raise StaleTicketError(f"the result of the lease {ticket} could not be sent: {error}") from error
        except StaleTicketError:
            raise
        except (ValueError, TypeError) as error:  # it cannot be encoded, is too long, or is refused
            _log.warning("the result of the lease %s is not used: %s", ticket, error)
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
        return 0 if reply is None else int(reply["count"])

    def resize(self, worker: str, desktops: int) -> None:
        """A worker has so many desktops now."""
        self._try("resize", {"worker": f"{self._name}/{worker}", "desktops": desktops})

    def demand(self) -> DesktopDemand | None:
        """What desktops of all rollout clusters are needed for; None if that is not known."""
        reply = self._try("demand", {})
        if reply is None:
            return None
        playing, waiting, busy, held_up = (reply[name] for name in DesktopDemand._fields)
        return DesktopDemand(int(playing), int(waiting), float(busy), float(held_up))

    # --- for the program that plays the run ---------------------------------------------------------------------

    def run(self) -> Mapping[str, Any]:
        """The run's ``plan`` and ``settings``. Raises as :meth:`next_weights`."""
        run: Mapping[str, Any] = json.loads(self._link.request("run", {}, patience=self._patience)["run"])
        return run

    def next_weights(self, loaded: WeightsTag | None, held: Collection[bytes], timeout: float) -> Weights | None:
        """Waits up to ``timeout`` seconds for other weights than those that all rollout services have loaded.

        Args:
            loaded: identifies those.
            held: hashes of tensors that need not be sent.
            timeout: seconds.

        Raises:
            RunEndedError: there is nothing more to play.
            TrainerGoneError, BrokenConnectionError: no trainer. ProtocolError: the trainer cannot be understood.
        """
        with self._changed:
            self._loaded = loaded
            self._changed.notify_all()
        asked = {"loaded": None if loaded is None else list(loaded), "timeout": timeout}
        reply = self._link.request("weights", asked, patience=self._patience)
        if reply["weights"] is None:
            return None
        names, tensors = dict[str, bytes](), dict[bytes, bytes]()
        for name, key, size in reply["tensors"]:
            names[str(name)] = key
            if key not in held and key not in tensors:
                tensor = self._link.download(key, int(size), patience=self._patience)
                if tensor is None:  # newer weights have replaced these
                    return None
                tensors[key] = tensor
        return Weights(WeightsTag(str(reply["weights"][0]), int(reply["weights"][1])), names, tensors)

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()

    # ------------------------------------------------------------------------------------------------------------

    def _request_leases(self, worker: str, limit: int, end: float) -> _Held | None:
        wait = max(0.0, end - monotonic())
        asked = {"worker": f"{self._name}/{worker}", "limit": limit, "timeout": wait}
        reply = self._try("lease", asked)
        if reply is None or not reply["leases"] or reply["weights"] is None:
            return None
        run, version = reply["weights"]
        leases = [decode_lease(lease) for lease in reply["leases"]]
        return _Held(leases, WeightsTag(str(run), int(version)), monotonic())

    def _try(self, kind: str, fields: Mapping[str, Any], blobs: Blobs | None = None) -> dict[str, Any] | None:
        """A reply; None if there is none in time."""
        try:
            return self._link.request(kind, fields, blobs, patience=_PATIENCE)
        except _LOST:
            return None

    def _usable(self, requires: WeightsTag) -> bool:
        """Whether the services have these weights or newer ones."""
        loaded = self._loaded
        return loaded is not None and loaded.run == requires.run and loaded.version >= requires.version

    def _wait_for(self, condition: Callable[[], bool], end: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, max(0.0, end - monotonic()))


def _encoded(result: Any) -> tuple[dict[str, Any], Blobs]:
    """The fields ``episode`` and ``outcome`` (of an evaluation, JSON) of a request, both None without a result."""
    if not isinstance(result, EpisodeResult):
        return {"episode": None, "outcome": None if result is None else json.dumps(result, allow_nan=False)}, {}
    episode, blobs = encode_result(result)
    return {"episode": episode, "outcome": None}, blobs
