"""EngineClient: requests to a ``bepa engine`` (:mod:`.server`). Imports neither vLLM nor torch."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, TypeVar

from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.http.folders import manifest
from bepa_torchrl.scale.wire.access import Access
from bepa_torchrl.scale.wire.client import WireClient
from bepa_torchrl.scale.wire.content import Blobs
from bepa_torchrl.scale.wire.errors import BrokenConnectionError, ProtocolError

T = TypeVar("T")
PATIENCE = 30.0  #: seconds without an answer until the server counts as gone
_POLL = 10.0  #: seconds that one request waits for the end of a job
_PAUSE = 0.5  #: between two attempts, seconds
_MAX_BODY = 1 << 32  #: bytes of a request for responses


class EngineUnreachableError(EngineError):
    """No server answers, or its answer was cut off."""


class EngineRefusedError(EngineError):
    """The server refuses a request; another attempt would be refused, too."""


class EngineClient:
    """Sends requests; each has a deadline.

    Args:
        access: to the server.
    """

    def __init__(self, access: Access) -> None:
        errors = {
            "refused": EngineRefusedError,
            "ended": BrokenConnectionError,
            "sync": WeightSyncError,
            "start": EngineError,
            "row": ValueError,
        }
        self.url = access.url
        self._wire = WireClient(access, errors=errors, ca_option="policy.engine.tls_ca", max_body=_MAX_BODY)

    def state(self) -> dict[str, Any]:
        """The server's ``vllm`` (its version), and ``weights``.

        Raises:
            EngineUnreachableError: it does not answer.
            EngineRefusedError: another token, another version of this package, or a certificate that is not trusted.
        """
        with _engine_errors():
            return self._wire.ask("state", {})

    def run(self, kind: str, fields: Mapping[str, Any], blobs: Blobs | None = None) -> dict[str, Any]:
        """The result of a job, however long it takes; it is done once, also if an answer is lost.

        Args:
            kind: ``load``, ``adapter``, ``generate`` or ``stop``.
            fields: the fields of the job.
            blobs: the content that it needs, by hash.

        Raises:
            EngineUnreachableError: no answer for :data:`PATIENCE`, or the server was started again meanwhile.
            EngineRefusedError, WeightSyncError, EngineError, ValueError: what the server reports.
        """
        job = {"job": uuid.uuid4().hex, "timeout": _POLL}
        answer = self._again(lambda: self._wire.ask(kind, {**fields, **job}, blobs))
        while not answer["done"]:
            answer = self._again(lambda: self._wire.ask("wait", job))
        if "result" not in answer:
            raise EngineUnreachableError(f"{self.url} was started again")
        return dict(answer["result"])

    def upload(self, name: str, folder: Path) -> None:
        """Sends what the server lacks of a folder's files. Raises as :meth:`run`."""
        files, places = manifest(folder)
        wanted = self._again(lambda: self._wire.ask("folder", {"name": name, "files": files}))["wanted"]
        for content in wanted:
            path, offset, size = places[content]

            def send(content: bytes = content, path: Path = path, offset: int = offset, size: int = size) -> None:
                with path.open("rb") as data:
                    data.seek(offset)
                    self._wire.upload(content, size, data)

            self._again(send)

    def _again(self, attempt: Callable[[], T]) -> T:
        end = monotonic() + PATIENCE
        with _engine_errors():
            while True:
                try:
                    return attempt()
                except BrokenConnectionError:
                    if monotonic() + _PAUSE >= end:
                        raise
                Event().wait(_PAUSE)


@contextmanager
def _engine_errors() -> Iterator[None]:
    """Errors of the wire become those of an engine."""
    try:
        yield
    except BrokenConnectionError as error:
        raise EngineUnreachableError(str(error)) from error
    except ProtocolError as error:
        raise EngineRefusedError(str(error)) from error
