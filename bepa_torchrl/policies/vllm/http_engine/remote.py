"""RemoteEngine: an engine on another machine, behind ``bepa engine`` (:mod:`.server`), by HTTP. Imports no vLLM.

Token ids, PNG images, weights (safetensors) and JSON cross the connection, which is not encrypted: use a private
network, or an SSH tunnel. While the engine works the server sends a byte every few seconds, so that a server that is
gone is noticed within half a minute, however long a batch takes.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event
from time import monotonic

from bepa_torchrl.policies.vllm.errors import EngineError, WeightSyncError
from bepa_torchrl.policies.vllm.http_engine.client import EngineClient, EngineUnreachableError
from bepa_torchrl.policies.vllm.http_engine.wire import decode_outputs, encode_rows, image_name
from bepa_torchrl.policies.vllm.rows import EngineExited, EngineOutput, EngineRow, EngineSpec

_log = logging.getLogger(__name__)
_AGAIN = 2.0  #: seconds until an unreachable server is asked again


class RemoteEngine:
    """A :class:`~bepa_torchrl.policies.vllm.rows.RowEngine` by HTTP.

    Args:
        client: of the server.
        spec: of the policy.
        start_timeout: seconds until a server that does not answer, or whose engine has not started, is an error.
        stall_timeout: seconds without a finished row, or for one weight reload, until the engine counts as exited.
    """

    def __init__(
        self, client: EngineClient, spec: EngineSpec, *, start_timeout: float = 600.0, stall_timeout: float = 600.0
    ) -> None:
        self._client, self.spec = client, spec
        self.start_timeout, self.stall_timeout = start_timeout, stall_timeout
        self._run = uuid.uuid4().hex[:12]  #: distinguishes this run's weights from another's
        self._weights: str | None = None  #: name of the weights that the server was given last
        self._images: set[str] = set()  #: that the server has

    @property
    def concurrent(self) -> bool:
        """The server answers one request at a time."""
        return False

    @property
    def running(self) -> bool:
        """Whether the engine was started and is not known to have exited."""
        return self._weights is not None

    def start(self, model: Path) -> None:
        """Gives the server a checkpoint folder and lets it start an engine; waits for a server that does not answer.

        Raises:
            EngineError: the engine does not start, or the server does not answer in time.
        """
        end = monotonic() + self.start_timeout
        while True:
            try:
                self._client.state()
                self._load(model, start=True)
                return
            except EngineUnreachableError as error:
                if monotonic() + _AGAIN > end:
                    raise
                _log.warning("%s; trying again", error)
                Event().wait(_AGAIN)

    def stop(self) -> None:
        """Lets the server end its engine; does nothing if it does not answer."""
        if self._weights is not None:
            with suppress(EngineError):
                self._client.ask("POST", "/stop", json.dumps({"weights": self._weights}).encode())
        self._weights = None
        self._images.clear()

    def reload(self, model: Path) -> None:
        """Gives the server the weights of a folder; its engine loads them, or is started if it has exited.

        Raises:
            WeightSyncError: the engine refuses the weights, or does not answer in time.
        """
        try:
            try:
                self._load(model, start=False)
            except EngineUnreachableError as error:
                _log.warning("%s; waiting for it", error)
                self.start(model)
        except WeightSyncError:
            raise
        except EngineError as error:
            raise WeightSyncError(f"the engine did not load {model}: {error}") from error

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        """One output per row, in order.

        Raises:
            EngineExited: the engine exited or stalled, or the server is gone; has the outputs of the finished rows.
            EngineRefusedError: the server has the weights of another run.
            ValueError: the engine refuses a row.
        """
        if self._weights is None:
            raise EngineExited("the engine is not running", {})
        try:
            found = self._client.ask("POST", "/generate", encode_rows(self._weights, rows, self._images))
            if "missing" in found:  # it has dropped images, or was started again
                self._images.clear()
                found = self._client.ask("POST", "/generate", encode_rows(self._weights, rows, set()))
        except EngineUnreachableError as error:
            raise EngineExited(str(error), {}) from error
        outputs = decode_outputs(found["outputs"])
        if "exited" in found:
            raise EngineExited(f"{self._client.url}: {found['exited']}", outputs)
        self._images |= {image_name(png) for row in rows for png in row.prompt.images}
        return [outputs[number] for number in range(len(rows))]

    def _load(self, model: Path, *, start: bool) -> None:
        """Uploads the folder's files and lets the engine use them."""
        name = f"{self._run}-{model.name}"
        files = {path.name: path.stat().st_size for path in sorted(model.iterdir()) if path.is_file()}
        for file, size in files.items():
            with (model / file).open("rb") as data:
                self._client.ask("PUT", f"/weights/{name}/{file}", data, size=size)
        request = {
            "weights": name,
            "files": files,
            "spec": asdict(self.spec),
            "start": start,
            "start_timeout": self.start_timeout,
            "stall_timeout": self.stall_timeout,
        }
        self._client.ask("POST", "/load", json.dumps(request).encode())
        self._weights = name
