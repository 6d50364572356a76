"""TrainerLink: the rollout side's requests, which are sent again after a failure, and whether the trainer is there."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

from bepa_torchrl.scale.rollouts.task_queue import StaleTicketError
from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.scale.wire.client import WireClient
from bepa_torchrl.scale.wire.content import Blobs
from bepa_torchrl.scale.wire.errors import BrokenConnectionError, ProtocolError, RunEndedError, TrainerGoneError

T = TypeVar("T")
_WATCH_SECONDS = 15.0  #: that the trainer holds each request by which both sides see that the other is there
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0  #: between two attempts to connect, seconds
_RETRY_PAUSE = 0.5  #: between two attempts of a request, seconds
_CLOSE_SECONDS = 5.0


class TrainerLink:
    """Requests from many threads to one trainer.

    Args:
        access: to the trainer.
        wait: seconds without an answer, at the start or later, after which the trainer is given up.
        note: gets a line when the connection is made or lost.
    """

    def __init__(self, access: Access, *, wait: float, note: Callable[[str], None]) -> None:
        self._client = WireClient(access, errors={"stale": StaleTicketError}, ca_option="--tls-ca")
        self._wait, self._note = wait, note
        self._problem: Exception | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainer link", daemon=True)
        self._thread.start()

    @property
    def trainer(self) -> str | None:
        """Identifies the process of the trainer that has answered last."""
        return self._client.instance

    def request(
        self, kind: str, fields: Mapping[str, Any], blobs: Blobs | None = None, *, patience: float
    ) -> dict[str, Any]:
        """The answer to a request.

        Args:
            kind: the kind of the request.
            fields: the fields of the request; its ``timeout``, if there is one, is what the trainer may wait.
            blobs: the content that it needs, by hash.
            patience: seconds for all attempts, in addition to ``timeout``.

        Raises:
            StaleTicketError: the lease has ended.
            ProtocolError: the trainer refuses the request, or cannot be understood or trusted.
            ValueError, TypeError: the request is too long or cannot be encoded.
            BrokenConnectionError: no answer in time.
            TrainerGoneError: no connection for too long. RunEndedError: there is nothing more to play.
        """
        waits = float(fields.get("timeout", 0.0))
        return self._again(lambda: self._client.ask(kind, fields, blobs), patience + waits)

    def download(self, name: bytes, size: int, *, patience: float) -> bytes | None:
        """Content by its hash; None if the trainer has it no more. Raises as :meth:`request`."""
        data = bytearray()
        try:
            self._again(lambda: self._client.download(name, size, data), patience)
        except LookupError:
            return None
        return bytes(data)

    def close(self) -> None:
        """Ends the connection; later requests fail."""
        self._problem = self._problem or RunEndedError("the connection was closed")
        self._closed.set()
        try:
            self._client.leave()
        except (BrokenConnectionError, ProtocolError, RunEndedError):
            return
        finally:
            self._thread.join(_CLOSE_SECONDS)
            self._client.close()

    def _again(self, attempt: Callable[[], T], patience: float) -> T:
        end = monotonic() + patience
        while True:
            if self._problem is not None:
                raise self._problem
            try:
                return attempt()
            except (RunEndedError, ProtocolError) as error:
                if isinstance(error, RunEndedError):
                    self._problem = self._problem or error
                raise
            except BrokenConnectionError:
                if self._problem is None and monotonic() + _RETRY_PAUSE >= end:
                    raise
            self._closed.wait(_RETRY_PAUSE)

    # --- the thread that watches the trainer ---------------------------------------------------------------------

    def _run(self) -> None:
        connected, seen, pause, timeout = False, monotonic(), _FIRST_PAUSE, 0.0
        lost = "no connection yet"  # noted once, and again after the next connection
        while self._problem is None:
            try:
                self._client.watch(timeout)
            except BrokenConnectionError as error:
                if lost and not self._closed.is_set():
                    self._note(f"{lost}: {error}; tried again for up to {self._wait:g} s")
                    lost = ""
                connected, timeout = False, 0.0
                if monotonic() - seen > self._wait:
                    where = f"no trainer at {self._client.url.partition('://')[2]} for {self._wait:g} s"
                    self._problem = self._problem or TrainerGoneError(f"{where}: {error}")
                self._closed.wait(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE)
            except (ProtocolError, RunEndedError) as error:
                self._problem = self._problem or error
            else:
                if not connected:
                    self._note(f"connected to {self._client.url}")
                connected, seen, pause, timeout = True, monotonic(), _FIRST_PAUSE, _WATCH_SECONDS
                lost = f"the connection to {self._client.url} is lost"
