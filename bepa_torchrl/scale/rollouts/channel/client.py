"""ChannelClient: the rollout side of the connection. It connects again after a failure, with growing pauses."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from time import monotonic
from typing import Any

from bepa_torchrl.scale.rollouts.channel.connection import Connection
from bepa_torchrl.scale.rollouts.channel.errors import (
    BrokenConnectionError,
    ProtocolError,
    RunEndedError,
    TrainerGoneError,
)
from bepa_torchrl.scale.rollouts.channel.handshake import greet_as_rollouts
from bepa_torchrl.scale.rollouts.channel.messages import Message
from bepa_torchrl.scale.rollouts.task_queue import StaleTicketError

PING_SECONDS = 15.0  #: without a message, after which the trainer is asked for one; after twice that it is gone
REPLY_SECONDS = 60.0  #: for a reply, in addition to what the request itself waits for
_CONNECT_SECONDS = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  #: between two attempts to connect, seconds
_RETRY_PAUSE = 0.5  #: between two attempts of a request, seconds


class ChannelClient:
    """Requests from many threads through one connection.

    Args:
        address: (host, port) of the trainer.
        token: the shared secret.
        wait: seconds without a connection, at the start or later, after which the trainer is given up.
        note: gets a line when the connection is made or lost.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes,
        *,
        wait: float = 600.0,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._address, self._token, self._wait, self._note = address, token, wait, note
        self._changed = threading.Condition()
        self._connection: Connection | None = None
        self._problem: Exception | None = None
        self._pending: dict[int, Future[Message]] = {}
        self._number = 0
        self._content: str | None = None  #: of the first trainer's plan and settings
        self._closed = threading.Event()
        self.run: str | None = None  #: identifies the process of the trainer that was last connected
        self.connections = 0  #: so far
        self._thread = threading.Thread(target=self._run, name="channel: client", daemon=True)
        self._thread.start()

    def request(self, kind: str, fields: Mapping[str, Any], blobs: Sequence[bytes] = (), *, patience: float) -> Message:
        """The reply to a request, which is sent again after a broken connection.

        Args:
            kind: of the request.
            fields: of the request; its ``timeout``, if there is one, is what the trainer may wait.
            blobs: of the request.
            patience: seconds for a reply and all attempts, in addition to ``timeout``.

        Raises:
            StaleTicketError: the lease has ended.
            ProtocolError: the trainer refuses the request, or cannot be understood or trusted.
            ValueError: the request is too long.
            BrokenConnectionError: no reply in time.
            TrainerGoneError: no connection for too long. RunEndedError: there is nothing more to play.
        """
        waits = float(fields.get("timeout", 0.0))
        end = monotonic() + patience + waits
        while True:
            connection = self._connected(end)
            try:
                return self._ask(connection, kind, fields, blobs, waits, end)
            except BrokenConnectionError:
                if monotonic() + _RETRY_PAUSE >= end:
                    raise
                self._closed.wait(_RETRY_PAUSE)

    def close(self) -> None:
        """Ends the connection; later requests fail."""
        self._closed.set()
        self._end(RunEndedError("the channel was closed"))
        self._thread.join(_CONNECT_SECONDS)

    def _connected(self, end: float) -> Connection:
        with self._changed:
            self._changed.wait_for(
                lambda: self._problem is not None or self._connection is not None, max(0.0, end - monotonic())
            )
            if self._problem is not None:
                raise self._problem
            if self._connection is None:
                raise BrokenConnectionError(f"no connection to the trainer at {self._where()}")
            return self._connection

    def _ask(
        self,
        connection: Connection,
        kind: str,
        fields: Mapping[str, Any],
        blobs: Sequence[bytes],
        waits: float,
        end: float,
    ) -> Message:
        reply: Future[Message] = Future()
        with self._changed:
            if connection is not self._connection:
                raise BrokenConnectionError("the connection has ended")
            self._number += 1
            number = self._number
            self._pending[number] = reply
        try:
            connection.send(Message(kind, number, fields, blobs))
            limit = monotonic() + REPLY_SECONDS + waits
            return _checked(reply.result(max(0.0, min(end, limit) - monotonic())))
        except TimeoutError as error:
            if monotonic() >= limit:
                connection.close()  # a connection that does not answer is of no use to others either
            raise BrokenConnectionError(f"no reply to {kind!r} in time") from error
        finally:
            with self._changed:
                self._pending.pop(number, None)

    # --- the thread that connects and receives ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                connection = self._connect_again()
                try:
                    self._receive(connection)
                except (BrokenConnectionError, ProtocolError) as error:
                    if not self._closed.is_set():
                        self._note(f"the connection to {self._where()} is lost: {error}")
                finally:
                    connection.close()
                    self._lose(connection)
        except (ProtocolError, RunEndedError, TrainerGoneError) as error:
            self._end(error)

    def _connect_again(self) -> Connection:
        """A connection, after as many attempts as ``wait`` seconds allow."""
        pause, start = _FIRST_PAUSE, monotonic()
        while True:
            try:
                return self._connect()
            except OSError as error:
                if self._closed.is_set() or monotonic() - start > self._wait:
                    raise TrainerGoneError(f"no trainer at {self._where()} for {self._wait:g} s: {error}") from error
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _connect(self) -> Connection:
        sock = socket.create_connection(self._address, timeout=_CONNECT_SECONDS)
        try:
            connection = Connection(
                sock, greet_as_rollouts(sock, self._token, timeout=_CONNECT_SECONDS), timeout=PING_SECONDS
            )
            welcome = connection.receive()
            if welcome is None or welcome.kind != "welcome":
                raise BrokenConnectionError("no welcome from the trainer")
        except BaseException:
            sock.close()
            raise
        content = str(welcome.fields.get("content"))
        if self._content not in (None, content):
            connection.close()
            raise RunEndedError(f"another run listens at {self._where()} now; start again to play it")
        with self._changed:
            self._content, self._connection, self.run = content, connection, str(welcome.fields.get("run"))
            self.connections += 1
            self._changed.notify_all()
        self._note(f"connected to {self._where()}")
        return connection

    def _receive(self, connection: Connection) -> None:
        """Gives replies to those who wait, until the connection ends."""
        pinged = False
        while True:
            message = connection.receive()
            if message is None:
                if pinged:
                    raise BrokenConnectionError(f"no message for {2 * PING_SECONDS:g} s")
                connection.send(Message("ping", 0))
                pinged = True
                continue
            pinged = False
            if message.kind == "ended":
                raise RunEndedError("the training has ended")
            with self._changed:
                reply = self._pending.pop(message.number, None)
            if reply is not None:
                reply.set_result(message)

    def _lose(self, connection: Connection) -> None:
        """Fails the requests that wait for a reply through this connection."""
        with self._changed:
            if self._connection is connection:
                self._connection = None
            pending, self._pending = self._pending, {}
        for reply in pending.values():
            reply.set_exception(BrokenConnectionError("the connection has ended"))

    def _end(self, problem: Exception) -> None:
        with self._changed:
            self._problem = self._problem or problem
            connection = self._connection
            self._changed.notify_all()
        if connection is not None:
            connection.close()
            self._lose(connection)

    def _where(self) -> str:
        return f"{self._address[0]}:{self._address[1]}"


def _checked(reply: Message) -> Message:
    """The reply, unless it is an error."""
    if reply.kind == "ok":
        return reply
    kind, text = reply.fields.get("type"), str(reply.fields.get("message"))
    if kind == "stale":
        raise StaleTicketError(text)
    if kind == "failed":
        raise BrokenConnectionError(f"the trainer could not answer: {text}")
    raise ProtocolError(f"the trainer refuses the request: {text}")
