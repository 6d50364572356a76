"""EngineServer: an engine for a trainer on another machine (``bepa engine``), through the wire.

    state                  vLLM's version, and the name of the weights
    folder, PUT /blob/…    a checkpoint folder, or one of adapters (:mod:`.folders`)
    load                   starts the engine on an uploaded folder, or lets it load that
    adapter                lets the engine add uploaded adapters to its weights
    generate               samples (:mod:`.rows`)
    stop                   ends the engine
    wait                   the result of one of these jobs, which goes on if the connection is lost

The server does one job at a time. Whoever loads weights last has the engine; a run that had it before is refused.
"""

from __future__ import annotations

import logging
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from bepa_torchrl.scale.engine.engine_interface import EngineExited, EngineSpec, RowEngine
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.http.folders import UploadedFolders
from bepa_torchrl.scale.engine.http.rows import decode_rows, encode_outputs
from bepa_torchrl.scale.wire.access import Tls
from bepa_torchrl.scale.wire.errors import ProtocolError, Refusal
from bepa_torchrl.scale.wire.server import Action, Call, WireServer

_log = logging.getLogger(__name__)
#: (spec, start_timeout, stall_timeout) → an engine
MakeEngine = Callable[[EngineSpec, float, float], RowEngine]
_LARGEST = 1 << 32  #: bytes of a request for responses
_JOBS = 16  #: whose results are kept for those who have not got them yet
_THREADS = (32, 8)  #: simultaneous requests that wait, and others
CLOSE_SECONDS = 30.0  #: for a job that is under way when the server is closed


class EngineServer:
    """Serves one engine; :meth:`close` ends it.

    Args:
        address: (host, port); port 0: any free one.
        token: the secret of the trainers, not empty.
        folder: for uploaded weights; created if missing.
        make_engine: makes the engine of a policy.
        version: the version of vLLM, for trainers.
        tls: certificate and key; None: without TLS.
        image_bytes: maximum size of the kept images; the least recently used are dropped.

    Raises:
        OSError: the address cannot be used.
        ValueError: no token.
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes,
        *,
        folder: Path,
        make_engine: MakeEngine,
        version: str,
        tls: Tls | None = None,
        image_bytes: int = 1 << 30,
    ) -> None:
        self.version, self._make_engine = version, make_engine
        self._engine: RowEngine | None = None
        self._spec: EngineSpec | None = None
        self._weights: str | None = None  # name of the engine's weights: that of the checkpoint, then of the adapters
        self._model: str | None = None  # that of the checkpoint
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")  # one thing at a time
        self.folders = UploadedFolders(folder)
        self._jobs: OrderedDict[str, Future[dict[str, Any]]] = OrderedDict()
        self._undone: set[Future[dict[str, Any]]] = set()
        self._closed = False
        self._lock = threading.Lock()  # held while jobs are added, the engine changes, or it is closed
        self._ending = threading.Lock()  # an engine is ended by one thread at a time
        jobs = {"load": self._load, "adapter": self._adapter, "generate": self._generate, "stop": self._end_engine}
        self.wire = WireServer(
            {
                "state": lambda _: self.state(),
                "folder": lambda call: {"wanted": self.folders.expect(str(call.fields["name"]), call.fields["files"])},
                "wait": self._wait,
                **{kind: self._as_job(work) for kind, work in jobs.items()},
            },
            address=address,
            token=token,
            option="--listen",
            tls=tls,
            instance=uuid.uuid4().hex,
            waiting=dict.fromkeys((*jobs, "wait"), lambda _: None),
            threads=_THREADS,
            receive=self.folders.receive,
            blob_bytes=image_bytes,
            max_body=_LARGEST,
        )
        self.address, self.url = self.wire.address, self.wire.url

    def close(self) -> None:
        """Ends the engine, also while it samples or starts, and the server; removes the uploaded weights.

        An engine that is still starting after :data:`CLOSE_SECONDS` is ended by its job as soon as it has started.
        """
        self.wire.close()
        with self._lock:
            self._closed = True
        self._worker.shutdown(wait=False, cancel_futures=True)
        try:
            self._stop()
            if wait(list(self._undone), CLOSE_SECONDS).not_done:
                _log.warning("a job has not ended within %g s; its engine is ended when it has", CLOSE_SECONDS)
        finally:
            shutil.rmtree(self.folders.root, ignore_errors=True)

    def state(self) -> dict[str, Any]:
        """What a trainer asks for first."""
        return {"vllm": self.version, "weights": self._weights}

    # --- jobs ---------------------------------------------------------------------------------------------------

    def _as_job(self, work: Callable[[Call], dict[str, Any]]) -> Action:
        """Does the work after that before it; once, also if the request comes again."""

        def act(call: Call) -> dict[str, Any]:
            name = str(call.fields["job"])
            with self._lock:
                if name not in self._jobs:
                    job = self._jobs[name] = self._worker.submit(work, call)
                    self._undone.add(job)
                    job.add_done_callback(self._undone.discard)
                    while len(self._jobs) > _JOBS:
                        self._jobs.popitem(last=False)
            return self._wait(call)

        return act

    def _wait(self, call: Call) -> dict[str, Any]:
        """A job's ``result``; not ``done``: it goes on; ``done`` without a result: the server was started meanwhile."""
        job = self._jobs.get(str(call.fields["job"]))
        if job is None:
            return {"done": True}
        if not wait([job], call.timeout).done:  # not by result(timeout): a job may end just after that has given up
            return {"done": False}
        try:
            return {"done": True, "result": job.result()}
        except (Refusal, ProtocolError):
            raise
        except Exception as error:  # a bug, or a full disk: the trainer gets it, and the server goes on
            _log.exception("a job failed")
            raise Refusal("refused", f"{type(error).__name__}: {error}") from error

    def _load(self, call: Call) -> dict[str, Any]:
        """Starts the engine on an uploaded folder, or lets it load that."""
        fields = call.fields
        spec, weights, start = _spec(fields["spec"]), str(fields["weights"]), bool(fields["start"])
        timeouts = float(fields["start_timeout"]), float(fields["stall_timeout"])
        model = self.folders.finish(weights)
        if start or self._engine is None or not self._engine.running or spec != self._spec:
            self._stop()
            self._use(self._make_engine(spec, *timeouts), spec)
            self._call("start", lambda engine: engine.start(model))
        else:
            self._call("sync", lambda engine: engine.reload(model))
        self._weights = self._model = weights
        self.folders.keep(weights)
        return self.state()

    def _adapter(self, call: Call) -> dict[str, Any]:
        """Lets the engine add uploaded adapters to its weights; ``exited``: why it must be given the weights first."""
        weights, adapter = str(call.fields["weights"]), str(call.fields["adapter"])
        if self._model is None or self._engine is None or not self._engine.running:
            return {"exited": "it has no weights"}
        if weights != self._model:
            raise _of_another_run(self._model, weights)
        folder = self.folders.finish(adapter)
        self._call("sync", lambda engine: engine.use_adapter(folder))
        self._weights = f"{weights}+{adapter}"
        self.folders.keep(weights, adapter)
        return self.state()

    def _generate(self, call: Call) -> dict[str, Any]:
        """Samples rows; ``exited``: why some have no output."""
        weights, rows = str(call.fields["weights"]), decode_rows(call.fields["rows"], call.blobs)
        engine = self._engine
        if engine is None or weights != self._weights:
            if self._weights is None:  # the server was started again: the trainer starts the engine again
                return {"outputs": [], "exited": "it has no weights"}
            raise _of_another_run(self._weights, weights)
        try:
            outputs = engine.generate(rows)
        except EngineExited as error:
            return {"outputs": encode_outputs(error.finished), "exited": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            raise Refusal("row", str(error)) from error
        return {"outputs": encode_outputs(dict(enumerate(outputs)))}

    def _end_engine(self, call: Call) -> dict[str, Any]:
        """Ends the engine if it has these weights."""
        if str(call.fields["weights"]) == self._weights:
            self._stop()
        return self.state()

    def _use(self, engine: RowEngine, spec: EngineSpec) -> None:
        """Makes this the engine, before it starts. Raises Refusal: the server was closed meanwhile."""
        with self._lock:
            if self._closed:
                raise _has_ended()
            self._engine, self._spec = engine, spec

    def _call(self, kind: str, action: Callable[[RowEngine], None]) -> None:
        engine = self._engine
        if engine is None:
            raise _has_ended()
        try:
            action(engine)
        except WeightSyncError as error:
            raise Refusal("sync", str(error)) from error
        except EngineError as error:
            self._stop()
            raise Refusal(kind, str(error)) from error
        finally:
            if self._closed:  # it may have been ended before it had started
                self._end(engine)

    def _stop(self) -> None:
        with self._lock:
            engine, self._engine, self._weights, self._model = self._engine, None, None, None
        if engine is not None:
            self._end(engine)

    def _end(self, engine: RowEngine) -> None:
        with self._ending:
            engine.stop()


def _has_ended() -> Refusal:
    return Refusal("ended", "the server has ended")


def _of_another_run(has: str | None, asked: str) -> Refusal:
    return Refusal("refused", f"the engine has the weights {has} of another run, not {asked}")


def _spec(fields: Mapping[str, Any]) -> EngineSpec:
    """The spec in a request. Raises KeyError, TypeError or ValueError for something else."""
    lists: dict[str, Any] = {name: tuple(int(i) for i in fields[name]) for name in ("end_token_ids", "blocked_ids")}
    lists["lora_targets"] = tuple(str(name) for name in fields["lora_targets"])
    return EngineSpec(**{**fields, **lists})
