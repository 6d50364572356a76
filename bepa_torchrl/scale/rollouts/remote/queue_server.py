"""The training side: serves the queue, the plan and the weights to rollout clusters.

A request may come again after a lost answer. Each is safe then: a lease that its client did not get is given back or
expires, and the second result of a ticket is refused by the queue.

A result that is not that of its lease is refused here, and its slot is played again: the trainer would end with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Protocol

from bepa_torchrl.scale.rollouts.env_worker import QueueClient, RolloutPlan
from bepa_torchrl.scale.rollouts.queue_service import MAX_WORKERS
from bepa_torchrl.scale.rollouts.queue_state import DesktopDemand
from bepa_torchrl.scale.rollouts.remote.checks import check_result
from bepa_torchrl.scale.rollouts.remote.plans import encode_lease, encode_plan
from bepa_torchrl.scale.rollouts.remote.results import decode_result
from bepa_torchrl.scale.rollouts.remote.weights import PublishedWeights, WeightsTag
from bepa_torchrl.scale.rollouts.task_queue import Lease, StaleTicketError
from bepa_torchrl.scale.wire.access import Tls
from bepa_torchrl.scale.wire.errors import ProtocolError
from bepa_torchrl.scale.wire.server import Call, WireServer

_log = logging.getLogger(__name__)
#: simultaneous requests of all rollout clusters that wait for something: leases, one per worker, and weights, one per
#: cluster; and of others, which are answered at once. Threads are made when they are needed
_WAITING, _REQUESTS = MAX_WORKERS + 32, 64


class ServedQueue(QueueClient, Protocol):
    """What rollout clusters use of :class:`bepa_torchrl.scale.rollouts.queue_service.QueueService`."""

    def leased(self, ticket: str) -> Lease: ...
    def release(self, worker: str, reason: str) -> int: ...
    def resize(self, worker: str, desktops: int) -> None: ...
    def demand(self) -> DesktopDemand: ...


class QueueServer:
    """Serves until :meth:`close`.

    Args:
        queue: the run's queue.
        weights: the trainer's; published before a group is admitted.
        plan: the run's tasks and seeds.
        settings: what else rollout clusters must know, JSON-compatible.
        address: (host, port) to listen on; port 0: any that is free.
        token: the shared secret.
        tls: certificate and key; None: without TLS.
        note: gets a line when a rollout cluster connects, is refused, or leaves.

    Raises:
        OSError: the address cannot be used; the message names it.
    """

    def __init__(
        self,
        queue: ServedQueue,
        weights: PublishedWeights,
        plan: RolloutPlan,
        settings: Mapping[str, Any],
        *,
        address: tuple[str, int],
        token: bytes,
        tls: Tls | None = None,
        note: Callable[[str], None] = _log.warning,
    ) -> None:
        self._queue, self._weights, self._plan = queue, weights, plan
        self._tasks = {task.id: task for task in plan.tasks}
        run = {"plan": encode_plan(plan), "settings": settings}
        content = hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()
        self.wire = WireServer(
            {
                "run": lambda _: {"run": json.dumps(run)},
                "lease": self._lease,
                "renew": self._renew,
                "complete": self._complete,
                "fail": self._fail,
                "release": self._release,
                "resize": self._resize,
                "demand": lambda _: self._queue.demand()._asdict(),
                "weights": self._newest_weights,
            },
            address=address,
            token=token,
            option="cluster.listen",
            tls=tls,
            instance=weights.run,
            content=content,
            waiting={"lease": self._give_back, "weights": lambda _: None},
            threads=(_WAITING, _REQUESTS),
            refusals={StaleTicketError: "stale"},
            send=self._tensor,
            note=note,
        )
        self.address, self.url = self.wire.address, self.wire.url

    def peers(self) -> list[str]:
        """HOST:PORT of each rollout cluster that is connected."""
        return self.wire.peers()

    def close(self) -> None:
        """Tells the rollout clusters that the run has ended, and closes everything."""
        self._weights.close()
        self.wire.close()

    # --- requests -----------------------------------------------------------------------------------------------

    def _give_back(self, answer: Mapping[str, Any]) -> None:
        """Ends leases that nobody has got, before they expire."""
        for lease in answer["leases"]:
            with suppress(StaleTicketError):
                self._queue.fail(self._own([lease["ticket"]])[0], "the connection ended before the lease was sent")

    def _lease(self, call: Call) -> dict[str, Any]:
        """Leases, and the version that they require: that of the newest weights now, which are those at admission.

        There are none before the first weights: the slots of a resumed run wait from its start, and a lease that no
        rollout cluster can play would be lost until it expires.
        """
        worker, limit, end = str(call.fields["worker"]), int(call.fields["limit"]), monotonic() + call.timeout
        if self._weights.other_than(None, call.timeout) is None:
            return {"leases": [], "weights": None}
        leases = self._queue.lease(worker, limit, max(0.0, end - monotonic()))
        newest = self._weights.newest()
        encoded = [encode_lease(lease) | {"ticket": f"{self._weights.run}:{lease.ticket}"} for lease in leases]
        return {"leases": encoded, "weights": None if newest is None else list(newest.tag)}

    def _renew(self, call: Call) -> dict[str, Any]:
        tickets = [str(ticket) for ticket in call.fields["tickets"]]
        own = {f"{self._weights.run}:{ticket}" for ticket in self._own(tickets)}
        ended = [ticket for ticket in tickets if ticket not in own]
        ended += [f"{self._weights.run}:{ticket}" for ticket in self._queue.renew(self._own(tickets))]
        return {"ended": ended}

    def _complete(self, call: Call) -> dict[str, Any]:
        ticket = self._ticket(call)
        lease = self._queue.leased(ticket)
        with self._refusing(lease):
            result = self._result(call)
            if result is None:
                raise ProtocolError(
                    "expected the result of an episode, or the outcome of one of an evaluation; got neither"
                )
            check_result(result, lease, self._plan, failed=False)
        self._queue.complete(ticket, result)
        return {}

    def _fail(self, call: Call) -> dict[str, Any]:
        ticket, reason = self._ticket(call), str(call.fields["reason"])
        lease = self._queue.leased(ticket)
        with self._refusing(lease):
            result = self._result(call)
            if result is not None:
                check_result(result, lease, self._plan, failed=True)
        self._queue.fail(ticket, reason, result)
        return {}

    @contextmanager
    def _refusing(self, lease: Lease) -> Iterator[None]:
        """Ends the lease if its result is refused in the block: its slot waits again, for another worker if any."""
        try:
            yield
        except (KeyError, TypeError, ValueError) as error:
            reason = f"its result is refused: {type(error).__name__}: {error}"
            _log.warning("slot %d of %d, attempt %d: %s", lease.slot, lease.group, lease.attempt, reason)
            with suppress(StaleTicketError):
                self._queue.fail(lease.ticket, reason)
            raise

    def _result(self, call: Call) -> Any:
        """The result of an episode, or the outcome of one of an evaluation; None without one."""
        episode, text = call.fields["episode"], call.fields["outcome"]
        outcome = None if text is None else json.loads(text)
        if (episode is not None and outcome is not None) or not isinstance(outcome, dict | None):
            raise ProtocolError("expected the result of an episode, or the outcome of one of an evaluation; got both")
        return outcome if episode is None else decode_result(episode, call.blobs, self._tasks)

    def _release(self, call: Call) -> dict[str, Any]:
        return {"count": self._queue.release(str(call.fields["worker"]), str(call.fields["reason"]))}

    def _resize(self, call: Call) -> dict[str, Any]:
        self._queue.resize(str(call.fields["worker"]), int(call.fields["desktops"]))
        return {}

    def _newest_weights(self, call: Call) -> dict[str, Any]:
        """The tag and the tensors' hashes and sizes, as soon as they are others than those that are loaded."""
        loaded = call.fields["loaded"]
        tag = None if loaded is None else WeightsTag(str(loaded[0]), int(loaded[1]))
        newest = self._weights.other_than(tag, call.timeout)
        if newest is None:
            return {"weights": None}
        tensors = [[name, key, len(newest.tensors[key])] for name, key in newest.names.items()]
        return {"weights": list(newest.tag), "tensors": tensors}

    def _tensor(self, key: bytes) -> memoryview | None:
        """A tensor; None if newer weights have replaced it."""
        newest = self._weights.newest()
        file = None if newest is None else newest.tensors.get(key)
        return None if file is None else memoryview(file)

    def _ticket(self, call: Call) -> str:
        """The queue's ticket. Raises StaleTicketError: it is of another process of the trainer."""
        ticket = str(call.fields["ticket"])
        own = self._own([ticket])
        if not own:
            raise StaleTicketError(f"the lease {ticket} is of another process of the trainer")
        return own[0]

    def _own(self, tickets: Sequence[str]) -> list[str]:
        prefix = f"{self._weights.run}:"
        return [ticket.removeprefix(prefix) for ticket in tickets if ticket.startswith(prefix)]
