"""RemoteEngine: an engine on another machine, behind ``bepa engine`` (:mod:`.server`). Imports no vLLM.

Token ids, PNG images and safetensors cross the wire. The trainer asks every few seconds whether the engine's job is
done, so that a server that is gone is noticed within half a minute, however long a batch takes; a connection that is
lost meanwhile changes nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event
from time import monotonic

from bepa_torchrl.scale.engine.engine_interface import EngineExited, EngineOutput, EngineRow, EngineSpec
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.http.client import EngineClient, EngineUnreachableError
from bepa_torchrl.scale.engine.http.rows import decode_outputs, encode_rows

_log = logging.getLogger(__name__)
_AGAIN = 2.0  #: seconds until an unreachable server is asked again


class RemoteEngine:
    """A :class:`~bepa_torchrl.scale.engine.engine_interface.RowEngine` by HTTP.

    Args:
        client: the client of the server.
        spec: the specification of the policy.
        start_timeout: seconds until a server that does not answer, or whose engine has not started, is an error.
        stall_timeout: seconds without a finished row, or for one weight sync, until the engine counts as exited.
    """

    def __init__(
        self, client: EngineClient, spec: EngineSpec, *, start_timeout: float = 600.0, stall_timeout: float = 600.0
    ) -> None:
        self._client, self.spec = client, spec
        self.start_timeout, self.stall_timeout = start_timeout, stall_timeout
        self._run = uuid.uuid4().hex[:12]  #: distinguishes this run's weights from another's
        self._weights: str | None = None  #: name of the weights that the server was given last, adapters included
        self._model: Path | None = None  #: their folder, without the adapters

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

        The engine has no adapters then.

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
                self._client.run("stop", {"weights": self._weights})
        self._weights = self._model = None

    def reload(self, model: Path) -> None:
        """Gives the server the weights of a folder; its engine loads them, or is started if it has exited.

        Raises:
            WeightSyncError: the engine refuses the weights, or does not answer in time.
        """
        with _sync_errors(model):
            try:
                self._load(model, start=False)
            except EngineUnreachableError as error:
                _log.warning("%s; waiting for it", error)
                self.start(model)

    def use_adapter(self, folder: Path) -> None:
        """Gives the server adapters; its engine adds them to its weights, which it gets again if it has exited.

        Raises:
            WeightSyncError: the engine refuses the adapters, or does not answer in time.
        """
        model = self._model
        if model is None:
            raise WeightSyncError(f"the engine did not load {folder}: it is not running")
        with _sync_errors(folder):
            try:
                self._add(folder, model)
            except (EngineUnreachableError, EngineExited) as error:
                _log.warning("%s; giving it the weights again", error)
                self.start(model)
                self._add(folder, model)

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        """One output per row, in order.

        Raises:
            EngineExited: the engine exited or stalled, or the server is gone; has the outputs of the finished rows.
            EngineRefusedError: the server has the weights of another run.
            ValueError: the engine refuses a row.
        """
        if self._weights is None:
            raise EngineExited("the engine is not running", {})
        encoded, images = encode_rows(rows)
        try:
            answer = self._client.run("generate", {"weights": self._weights, "rows": encoded}, images)
        except EngineUnreachableError as error:
            raise EngineExited(str(error), {}) from error
        outputs = decode_outputs(answer["outputs"])
        if "exited" in answer:
            raise EngineExited(f"{self._client.url}: {answer['exited']}", outputs)
        return [outputs[number] for number in range(len(rows))]

    def _load(self, model: Path, *, start: bool) -> None:
        """Uploads the folder's files and lets the engine use them."""
        name = self._name(model)
        self._client.upload(name, model)
        request = {
            "weights": name,
            "spec": asdict(self.spec),
            "start": start,
            "start_timeout": self.start_timeout,
            "stall_timeout": self.stall_timeout,
        }
        self._weights = self._client.run("load", request)["weights"]
        self._model = model

    def _add(self, adapter: Path, model: Path) -> None:
        """Uploads adapters and lets the engine, which has the model's weights, use them."""
        name = self._name(adapter)
        self._client.upload(name, adapter)
        answer = self._client.run("adapter", {"weights": self._name(model), "adapter": name})
        if "exited" in answer:
            raise EngineExited(f"{self._client.url}: {answer['exited']}")
        self._weights = answer["weights"]

    def _name(self, folder: Path) -> str:
        return f"{self._run}-{folder.name}"


@contextmanager
def _sync_errors(source: Path) -> Iterator[None]:
    """Errors of an engine that does not load a folder become WeightSyncError."""
    try:
        yield
    except WeightSyncError:
        raise
    except EngineError as error:
        raise WeightSyncError(f"the engine did not load {source}: {error}") from error
