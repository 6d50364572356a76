"""EngineServer: an engine for a trainer on another machine (``bepa engine``), by HTTP.

    GET  /state                 {"schema", "instance", "vllm", "weights"}
    PUT  /weights/NAME/FILE     one file of a checkpoint folder, or of adapters
    POST /load                  starts the engine on uploaded weights, or lets it load them
    POST /adapter               lets the engine add uploaded adapters to its weights
    POST /generate              samples (:mod:`.wire`)
    POST /stop                  ends the engine

Every request needs the token. An answer is JSON; while the engine works, spaces are sent in front of it. The server
does one thing at a time. Whoever loads weights last has the engine; a run that had it before is refused.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import shutil
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bepa_torchrl.scale.engine.engine_interface import EngineExited, EngineSpec, RowEngine
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.engine.http_engine.client import SCHEMA
from bepa_torchrl.scale.engine.http_engine.wire import build_rows, decode_rows, encode_outputs

_log = logging.getLogger(__name__)
#: (spec, start_timeout, stall_timeout) → an engine
MakeEngine = Callable[[EngineSpec, float, float], RowEngine]
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
_FILES = (".json", ".safetensors", ".jinja", ".txt")
_BEAT = 5.0  #: seconds between two bytes of an answer that is not finished
_CHUNK = 1 << 20
_IDLE = 60.0  #: seconds without a byte of a request
_LARGEST = 1 << 32  #: bytes of a request for responses


class RequestError(Exception):
    """A request is refused.

    Args:
        kind: ``refused``, ``sync``, ``start`` or ``row``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class EngineServer:
    """Serves one engine; :meth:`close` ends it.

    Args:
        address: (host, port); port 0: any free one.
        token: the secret of the trainers, not empty.
        folder: for uploaded weights; created if missing.
        make_engine: makes the engine of a policy.
        version: of vLLM, for trainers.
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
        image_bytes: int = 1 << 30,
    ) -> None:
        if not token:
            raise ValueError("expected a token, got none")
        self.token, self.folder, self.version = token, folder, version
        self.instance = uuid.uuid4().hex
        self._make_engine, self._image_bytes = make_engine, image_bytes
        self._engine: RowEngine | None = None
        self._spec: EngineSpec | None = None
        self._weights: str | None = None  # name of the engine's weights: that of the checkpoint, then of the adapters
        self._model: str | None = None  # that of the checkpoint
        self._images: OrderedDict[str, bytes] = OrderedDict()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")  # one thing at a time
        folder.mkdir(parents=True, exist_ok=True)
        self._http = ThreadingHTTPServer(address, _Handler)
        self._http.daemon_threads = True
        self._http.engine_server = self  # type: ignore[attr-defined]
        self.address: tuple[str, int] = self._http.server_address[:2]  # type: ignore[assignment]
        self._thread = threading.Thread(target=self._http.serve_forever, name="engine server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the engine, also while it samples, and the server; removes the uploaded weights."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._stop()
        self._worker.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def submit(self, job: Callable[[], dict[str, Any]]) -> Any:
        """Runs a job after those before it; returns its future."""
        return self._worker.submit(job)

    # --- the requests -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What a trainer asks for first."""
        return {"schema": SCHEMA, "instance": self.instance, "vllm": self.version, "weights": self._weights}

    def file(self, weights: str, name: str) -> Path:
        """Where an uploaded file belongs. Raises RequestError for a name that is none of a checkpoint's."""
        if not (_NAME.fullmatch(weights) and _NAME.fullmatch(name) and name.endswith(_FILES)):
            raise RequestError(
                "refused", f"{weights}/{name} is no file of a checkpoint; expected *{', *'.join(_FILES)}"
            )
        return self.folder / weights / name

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Starts the engine on uploaded weights, or lets it load them."""
        try:
            spec = _spec(request["spec"])
            weights, files, start = str(request["weights"]), dict(request["files"]), bool(request["start"])
            timeouts = float(request["start_timeout"]), float(request["stall_timeout"])
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError("refused", f"no request of schema {SCHEMA}: {error}") from error
        self._check_files(weights, files)
        model = self.folder / weights
        if start or self._engine is None or not self._engine.running or spec != self._spec:
            self._stop()
            self._engine, self._spec = self._make_engine(spec, *timeouts), spec
            self._call("start", lambda engine: engine.start(model))
        else:
            self._call("sync", lambda engine: engine.reload(model))
        self._weights = self._model = weights
        self._keep_folders(weights)
        return self.state()

    def adapter(self, request: dict[str, Any]) -> dict[str, Any]:
        """Lets the engine add uploaded adapters to its weights; ``exited``: why it must be given the weights first."""
        try:
            weights, adapter, files = str(request["weights"]), str(request["adapter"]), dict(request["files"])
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError("refused", f"no request of schema {SCHEMA}: {error}") from error
        if self._model is None or self._engine is None or not self._engine.running:
            return {"exited": "it has no weights"}
        if weights != self._model:
            raise _of_another_run(self._model, weights)
        self._check_files(adapter, files)
        self._call("sync", lambda engine: engine.use_adapter(self.folder / adapter))
        self._weights = f"{weights}+{adapter}"
        self._keep_folders(weights, adapter)
        return self.state()

    def generate(self, body: bytes) -> dict[str, Any]:
        """Samples rows; ``missing``: images that must be sent first, ``exited``: why some rows have no output."""
        try:
            weights, listed, tokens, images = decode_rows(body)
        except ValueError as error:
            raise RequestError("refused", str(error)) from error
        if self._engine is None or weights != self._weights:
            if self._weights is None:  # the server was started again: the trainer starts the engine again
                return {"outputs": [], "exited": "it has no weights"}
            raise _of_another_run(self._weights, weights)
        self._keep(images)
        missing = sorted({name for row in listed for name in row["images"]} - self._images.keys() - images.keys())
        if missing:
            return {"outputs": [], "missing": missing}
        try:
            outputs = self._engine.generate(build_rows(listed, tokens, {**self._images, **images}))
        except EngineExited as error:
            return {"outputs": encode_outputs(error.finished), "exited": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            raise RequestError("row", str(error)) from error
        return {"outputs": encode_outputs(dict(enumerate(outputs)))}

    def stop(self, weights: str) -> dict[str, Any]:
        """Ends the engine if it has these weights."""
        if weights == self._weights:
            self._stop()
        return self.state()

    def _check_files(self, folder: str, files: dict[str, Any]) -> None:
        """Raises RequestError unless a folder's files were uploaded, of these sizes."""
        for name, size in files.items():
            path = self.file(folder, name)
            if not path.is_file() or path.stat().st_size != size:
                raise RequestError("sync", f"{name} was not uploaded whole; send the weights again")

    def _keep_folders(self, *names: str) -> None:
        """Removes what was uploaded before."""
        for old in self.folder.iterdir():
            if old.name not in names:
                shutil.rmtree(old, ignore_errors=True)

    def _call(self, kind: str, action: Callable[[RowEngine], None]) -> None:
        assert self._engine is not None
        try:
            action(self._engine)
        except WeightSyncError as error:
            raise RequestError("sync", str(error)) from error
        except EngineError as error:
            self._stop()
            raise RequestError(kind, str(error)) from error

    def _stop(self) -> None:
        engine, self._engine, self._weights, self._model = self._engine, None, None, None
        if engine is not None:
            engine.stop()

    def _keep(self, images: dict[str, bytes]) -> None:
        """Keeps new images, and drops the oldest beyond the limit."""
        self._images |= images
        size = sum(len(png) for png in self._images.values())
        while size > self._image_bytes and self._images:
            size -= len(self._images.popitem(last=False)[1])


def _of_another_run(has: str | None, asked: str) -> RequestError:
    return RequestError("refused", f"the engine has the weights {has} of another run, not {asked}")


def _spec(fields: dict[str, Any]) -> EngineSpec:
    """The spec in a request. Raises TypeError or ValueError for something else."""
    lists: dict[str, Any] = {name: tuple(int(i) for i in fields[name]) for name in ("end_token_ids", "blocked_ids")}
    lists["lora_targets"] = tuple(str(name) for name in fields["lora_targets"])
    return EngineSpec(**{**fields, **lists})


class _Handler(BaseHTTPRequestHandler):
    """One connection, one request."""

    timeout = _IDLE
    server: Any

    def do_GET(self) -> None:
        self._answer(lambda: self._owner.state() if self.path == "/state" else self._unknown())

    def do_PUT(self) -> None:
        self._answer(self._upload)

    def do_POST(self) -> None:
        self._answer(self._post)

    @property
    def _owner(self) -> EngineServer:
        owner: EngineServer = self.server.engine_server
        return owner

    def _answer(self, work: Callable[[], dict[str, Any]]) -> None:
        """Sends what ``work`` returns, or its error."""
        given = self.headers.get("Authorization", "").encode("latin-1")
        self._begun = False
        try:
            if not hmac.compare_digest(given, b"Bearer " + self._owner.token):
                raise RequestError("refused", "another token than the server's; give both sides the same")
            answer = work()
        except RequestError as error:
            answer = {"error": error.kind, "message": str(error)}
        except ConnectionError:
            return  # the trainer is gone
        except Exception as error:  # noqa: BLE001  a bug, or a full disk: the trainer gets it, and the server goes on
            _log.exception("%s %s failed", self.command, self.path)
            answer = {"error": "refused", "message": f"{type(error).__name__}: {error}"}
        with suppress(ConnectionError):
            self._begin()
            self.wfile.write(json.dumps(answer).encode())

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Connection", "close")
            self.end_headers()

    def _post(self) -> dict[str, Any]:
        body = self._body()
        if self.path == "/generate":
            return self._waited(lambda: self._owner.generate(body))
        request = _json(body)
        if self.path == "/load":
            return self._waited(lambda: self._owner.load(request))
        if self.path == "/adapter":
            return self._waited(lambda: self._owner.adapter(request))
        if self.path == "/stop":
            return self._waited(lambda: self._owner.stop(str(request.get("weights"))))
        return self._unknown()

    def _waited(self, job: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The job's result; a space is sent every few seconds until then."""
        future = self._owner.submit(job)
        while True:
            try:
                result: dict[str, Any] = future.result(_BEAT)
                return result
            except FutureTimeoutError:
                self._begin()
                self.wfile.write(b" ")
                self.wfile.flush()

    def _upload(self) -> dict[str, Any]:
        parts = self.path.split("/")
        if len(parts) != 4 or parts[:2] != ["", "weights"]:
            return self._unknown()
        path, left = self._owner.file(parts[2], parts[3]), self._length()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")  # an engine may have the old file open
        with part.open("wb") as file:
            while left:
                data = self.rfile.read(min(left, _CHUNK))
                if not data:
                    raise RequestError("sync", f"{path.name} ended too early")
                file.write(data)
                left -= len(data)
        part.replace(path)
        return {}

    def _body(self) -> bytes:
        length = self._length()
        if length > _LARGEST:
            raise RequestError("refused", f"a request has at most {_LARGEST} bytes, got {length}")
        return self.rfile.read(length)

    def _length(self) -> int:
        text = self.headers.get("Content-Length", "")
        if not text.isdecimal():
            raise RequestError("refused", "expected a Content-Length")
        return int(text)

    def _unknown(self) -> dict[str, Any]:
        raise RequestError("refused", f"unknown request {self.command} {self.path}")

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _json(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except ValueError as error:
        raise RequestError("refused", f"no JSON: {error}") from error
    if not isinstance(request, dict):
        raise RequestError("refused", "expected a JSON object")
    return request
