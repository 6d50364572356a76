"""ChannelServer: the training side. It listens, and serves the queue, the plan and the weights to rollout clusters.

A request may come again after a broken connection. Each is safe then: a lease whose reply was lost expires or is given
back, and the second result of a ticket is refused by the queue.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from bepa_torchrl.scale.rollouts.channel.connection import Connection
from bepa_torchrl.scale.rollouts.channel.errors import BrokenConnectionError, ProtocolError
from bepa_torchrl.scale.rollouts.channel.handshake import greet_as_trainer
from bepa_torchrl.scale.rollouts.channel.messages import Message
from bepa_torchrl.scale.rollouts.channel.plans import encode_lease, encode_plan
from bepa_torchrl.scale.rollouts.channel.results import decode_result
from bepa_torchrl.scale.rollouts.channel.weights import PublishedWeights, WeightsTag
from bepa_torchrl.scale.rollouts.env_worker import RolloutPlan
from bepa_torchrl.scale.rollouts.queue_service import MAX_WORKERS
from bepa_torchrl.scale.rollouts.queue_state import DesktopDemand
from bepa_torchrl.scale.rollouts.task_queue import Lease, StaleTicketError

_log = logging.getLogger(__name__)
CHUNK = 4 << 20  #: bytes of weights per reply
MAX_WAIT = 20.0  #: seconds that a request may wait for something
IDLE_SECONDS = 60.0  #: after which a connection without any message is closed
_GREETING_SECONDS = 10.0
_GREETINGS = 32  #: simultaneous handshakes; further connections are closed
#: simultaneous requests of all rollout clusters that wait for something: leases, one per worker, and weights, one per
#: cluster; and of others, which are answered at once. Threads are made when they are needed
_WAITING, _REQUESTS = MAX_WORKERS + 32, 64
_CLOSE_SECONDS = 5.0

Reply = tuple[Mapping[str, Any], Sequence[bytes]]


class ServedQueue(Protocol):
    """What rollout clusters use of :class:`bepa_torchrl.scale.rollouts.queue_service.QueueService`."""

    def lease(self, worker: str, limit: int, timeout: float) -> list[Lease]: ...
    def renew(self, tickets: list[str]) -> list[str]: ...
    def complete(self, ticket: str, result: Any) -> None: ...
    def fail(self, ticket: str, reason: str, result: Any = None) -> None: ...
    def release(self, worker: str, reason: str) -> int: ...
    def resize(self, worker: str, desktops: int) -> None: ...
    def demand(self) -> DesktopDemand: ...


class ChannelServer:
    """Serves until :meth:`close`.

    Args:
        queue: the run's queue.
        weights: the trainer's; published before a group is admitted.
        plan: the run's tasks and seeds.
        settings: what else rollout clusters must know, JSON-compatible.
        address: (host, port) to listen on; port 0: any that is free.
        token: the shared secret.
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
        note: Callable[[str], None] = _log.warning,
    ) -> None:
        self._queue, self._weights, self._token, self._note = queue, weights, token, note
        self._tasks = {task.id: task for task in plan.tasks}
        self._run = {"plan": encode_plan(plan), "settings": settings}
        content = hashlib.sha256(json.dumps(self._run, sort_keys=True).encode()).hexdigest()
        self._welcome = {"run": weights.run, "content": content}
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._connections: dict[Connection, tuple[str, threading.Thread]] = {}
        self._greetings = threading.BoundedSemaphore(_GREETINGS)
        self._waiting = ThreadPoolExecutor(_WAITING, thread_name_prefix="channel: waits")
        self._requests = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="channel")
        self._actions: Mapping[str, Callable[[Message], Reply]] = {
            "run": lambda _: (self._run, ()),
            "ping": lambda _: ({}, ()),
            "lease": self._lease,
            "renew": self._renew,
            "complete": self._complete,
            "fail": self._fail,
            "release": self._release,
            "resize": self._resize,
            "demand": self._demand,
            "weights": self._newest_weights,
            "chunk": self._chunk,
        }
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._listener = socket.create_server(address, family=family)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise OSError(error.errno, f"cannot listen on {where} ({error.strerror}); set cluster.listen") from error
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="channel: accept", daemon=True).start()

    def peers(self) -> list[str]:
        """HOST:PORT of each rollout cluster that is connected."""
        with self._lock:
            return [peer for peer, _ in self._connections.values()]

    def close(self) -> None:
        """Tells the rollout clusters that the run has ended, and closes everything."""
        self._closing.set()
        self._weights.close()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with suppress(BrokenConnectionError):
                connection.send(Message("ended", 0))
            connection.finish()
        end = monotonic() + _CLOSE_SECONDS
        for connection, (_, thread) in connections.items():
            thread.join(max(0.0, end - monotonic()))  # the other side closes; closing first could discard the message
            connection.close()
        for threads in (self._waiting, self._requests):
            threads.shutdown(wait=False, cancel_futures=True)

    # --- connections --------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, (host, port, *_) = self._listener.accept()
            except OSError:
                if self._closing.wait(0.1):  # else too many open files, or the peer has gone
                    return
                continue
            if not self._greetings.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(target=self._greet, args=(sock, f"{host}:{port}"), daemon=True).start()

    def _greet(self, sock: socket.socket, peer: str) -> None:
        try:
            keys = greet_as_trainer(sock, self._token, timeout=_GREETING_SECONDS)
            connection = Connection(sock, keys, timeout=IDLE_SECONDS)
            connection.send(Message("welcome", 0, self._welcome))
        except (ProtocolError, BrokenConnectionError) as error:
            sock.close()
            report = self._note if isinstance(error, ProtocolError) else _log.info  # a port's health check says nothing
            report(f"a connection from {peer} is refused: {error}")
            return
        finally:
            self._greetings.release()
        with self._lock:
            self._connections[connection] = (peer, threading.current_thread())
        self._note(f"a rollout cluster at {peer} is connected")
        self._read(connection, peer)

    def _read(self, connection: Connection, peer: str) -> None:
        reason = ""
        try:
            while True:
                message = connection.receive()
                if message is None:
                    raise BrokenConnectionError(f"no message for {IDLE_SECONDS:g} s")
                if not self._closing.is_set():
                    threads = self._waiting if message.kind in ("lease", "weights") else self._requests
                    threads.submit(self._answer, connection, message)
        except (BrokenConnectionError, ProtocolError, RuntimeError) as error:  # RuntimeError: shut down meanwhile
            reason = str(error)
        finally:
            connection.close()
            with self._lock:
                self._connections.pop(connection, None)
        if not self._closing.is_set():
            self._note(f"the rollout cluster at {peer} is disconnected: {reason}")

    # --- requests -----------------------------------------------------------------------------------------------

    def _answer(self, connection: Connection, message: Message) -> None:
        try:
            fields, blobs = self._reply(message)
            reply = Message("ok", message.number, fields, blobs)
        except StaleTicketError as error:
            reply = _error(message, "stale", error)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            reply = _error(message, "refused", error)
        except Exception as error:  # noqa: BLE001  stated to the rollout cluster, which tries again
            reply = _error(message, "failed", error)
        try:
            connection.send(reply)
        except BrokenConnectionError:  # asked again through the next connection
            for lease in reply.fields.get("leases", ()):
                self._give_back(lease["ticket"])

    def _reply(self, message: Message) -> Reply:
        action = self._actions.get(message.kind)
        if action is None:
            raise ProtocolError(f"unknown request {message.kind!r}; known: {', '.join(self._actions)}")
        return action(message)

    def _give_back(self, ticket: str) -> None:
        """Ends a lease that nobody has got, before it expires."""
        with suppress(StaleTicketError):
            self._queue.fail(self._own([ticket])[0], "the connection ended before the lease was sent")

    def _lease(self, message: Message) -> Reply:
        """Leases, and the version that they require: that of the newest weights now, which are those at admission."""
        fields = message.fields
        worker, limit, timeout = str(fields["worker"]), int(fields["limit"]), _wait(fields)
        leases = self._queue.lease(worker, limit, timeout)
        newest = self._weights.newest()
        encoded = [encode_lease(lease) | {"ticket": f"{self._weights.run}:{lease.ticket}"} for lease in leases]
        return {"leases": encoded, "weights": None if newest is None else list(newest.tag)}, ()

    def _renew(self, message: Message) -> Reply:
        tickets = [str(ticket) for ticket in message.fields["tickets"]]
        own = {f"{self._weights.run}:{ticket}" for ticket in self._own(tickets)}
        ended = [ticket for ticket in tickets if ticket not in own]
        ended += [f"{self._weights.run}:{ticket}" for ticket in self._queue.renew(self._own(tickets))]
        return {"ended": ended}, ()

    def _complete(self, message: Message) -> Reply:
        ticket, result = self._ticket(message.fields), self._result(message)
        if result is None:
            raise ProtocolError(
                "expected the result of an episode, or the outcome of one of an evaluation; got neither"
            )
        self._queue.complete(ticket, result)
        return {}, ()

    def _fail(self, message: Message) -> Reply:
        self._queue.fail(self._ticket(message.fields), str(message.fields["reason"]), self._result(message))
        return {}, ()

    def _result(self, message: Message) -> Any:
        """The result of an episode, or the outcome of one of an evaluation; None without one."""
        episode, outcome = message.fields["episode"], message.fields["outcome"]
        if (episode is not None and outcome is not None) or not isinstance(outcome, dict | None):
            raise ProtocolError("expected the result of an episode, or the outcome of one of an evaluation; got both")
        return outcome if episode is None else decode_result(episode, message.blobs, self._tasks)

    def _release(self, message: Message) -> Reply:
        return {"count": self._queue.release(str(message.fields["worker"]), str(message.fields["reason"]))}, ()

    def _resize(self, message: Message) -> Reply:
        self._queue.resize(str(message.fields["worker"]), int(message.fields["desktops"]))
        return {}, ()

    def _demand(self, _: Message) -> Reply:
        return self._queue.demand()._asdict(), ()

    def _newest_weights(self, message: Message) -> Reply:
        """The tag and the sizes of the parts, as soon as they are others than those that are loaded."""
        loaded = message.fields["loaded"]
        tag = None if loaded is None else WeightsTag(str(loaded[0]), int(loaded[1]))
        newest = self._weights.other_than(tag, _wait(message.fields))
        if newest is None:
            return {"weights": None}, ()
        return {"weights": list(newest.tag), "parts": [len(part) for part in newest.parts]}, ()

    def _chunk(self, message: Message) -> Reply:
        """A chunk of a part; none if newer weights were published meanwhile."""
        fields = message.fields
        newest = self._weights.newest()
        if newest is None or list(newest.tag) != fields["weights"]:
            return {"replaced": True}, ()
        part, offset = newest.parts[int(fields["part"])], int(fields["offset"])
        return {"replaced": False}, (part[offset : offset + CHUNK],)

    def _ticket(self, fields: Mapping[str, Any]) -> str:
        """The queue's ticket. Raises StaleTicketError: it is of another process of the trainer."""
        own = self._own([str(fields["ticket"])])
        if not own:
            raise StaleTicketError(f"the lease {fields['ticket']} is of another process of the trainer")
        return own[0]

    def _own(self, tickets: Sequence[str]) -> list[str]:
        prefix = f"{self._weights.run}:"
        return [ticket.removeprefix(prefix) for ticket in tickets if ticket.startswith(prefix)]


def _wait(fields: Mapping[str, Any]) -> float:
    return min(MAX_WAIT, max(0.0, float(fields["timeout"])))


def _error(message: Message, kind: str, error: Exception) -> Message:
    text = str(error) if kind == "stale" else f"{type(error).__name__}: {error}"
    return Message("error", message.number, {"type": kind, "message": text})
