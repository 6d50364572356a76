"""WireServer: requests of other machines by HTTP or HTTPS (uvicorn, starlette), in a thread of this process.

    POST /KIND       MessagePack: {"fields", "needs": hashes of content, "blobs": content that the server may lack}
                     → MessagePack of the result, or {"missing": hashes}, whereupon the request comes again with them
    POST /watch      answered after some seconds, or when the server ends: each side sees that the other is there
    GET  /blob/HASH  content from ``?offset=`` on
    PUT  /blob/HASH  content that is too large for a body

Every request has the token and the version. An error is JSON, {"error": its kind, "message": one line}. Whoever waits
asks again after some seconds (long polling): nothing is held open for longer than :data:`MAX_WAIT`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bepa_torchrl.scale.wire.access import (
    VERSION,
    VERSION_HEADER,
    Tls,
    address_text,
    check_tls,
    check_version,
    listening_socket,
)
from bepa_torchrl.scale.wire.connections import Connection
from bepa_torchrl.scale.wire.content import MAX_BODY, Blobs, BlobStore, pack, unpack
from bepa_torchrl.scale.wire.errors import ProtocolError, Refusal

_log = logging.getLogger(__name__)
MAX_WAIT = 15.0  #: seconds that a request may wait for something
IDLE_SECONDS = 60.0  #: without a byte of a request's body, or without a new watch, until a client is gone
CHUNK = 1 << 20  #: bytes of streamed content
START_SECONDS = 30.0  #: until a server that does not listen yet is an error
_CLOSE_SECONDS = 5.0
_CONNECTIONS = 2048  #: of all clients; further ones are answered 503
_STATUS = {"token": 401, "version": 426, "unknown": 404, "slow": 408, "large": 413, "ended": 410, "failed": 500}

_UNREAD = ("token", "version", "slow", "large")  #: errors before the whole body was read


@dataclass(frozen=True, slots=True)
class Call:
    """A request for an action.

    Args:
        fields: the fields of the request.
        blobs: the content that it needs, by hash.
    """

    fields: Mapping[str, Any]
    blobs: Blobs

    @property
    def timeout(self) -> float:
        """Seconds that it may wait for something. Raises KeyError, TypeError or ValueError if it does not say."""
        return _waits(self.fields)


@dataclass(frozen=True, slots=True, eq=False)
class _Watch:
    """A client's last watch: its HOST:PORT, and whether it has said that it goes."""

    where: str
    left: asyncio.Event


class _Http(uvicorn.Server):
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config, listens: Callable[[], None]) -> None:
        super().__init__(config)
        self._listens = listens

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._listens()


Action = Callable[[Call], Mapping[str, Any]]
#: (hash, parts of the content) → None; raises Refusal
Receive = Callable[[bytes, AsyncIterator[bytes]], Awaitable[None]]


class WireServer:
    """Serves until :meth:`close`.

    Args:
        actions: by kind of request; each runs in a thread, and raises :class:`.errors.Refusal` for a refusal.
        address: (host, port) to listen on; port 0: any that is free.
        token: the shared secret, not empty.
        option: the setting or option with the address, for the error.
        tls: certificate and key; None: HTTP.
        instance: identifies this process for clients.
        content: identifies what is served; a client that has seen another is refused as after the end. "": nothing.
        waiting: kinds of requests that wait for something, with what takes back a result that its client did not get.
        threads: maximum numbers of simultaneous requests that wait, and of others.
        refusals: exceptions of actions that are refusals, and their kinds.
        send: content for ``GET``. receive: takes that of ``PUT``.
        blob_bytes: maximum size of the content that is kept for later requests.
        max_body: maximum bytes of a request that is not streamed.
        note: gets a line when a client comes, leaves, or is refused.

    Raises:
        OSError: the address cannot be used, or the server does not start in time; the message names it.
        ValueError: no token, or a certificate and key that cannot be used.
    """

    def __init__(
        self,
        actions: Mapping[str, Action],
        *,
        address: tuple[str, int],
        token: bytes,
        option: str,
        tls: Tls | None = None,
        instance: str,
        content: str = "",
        waiting: Mapping[str, Callable[[Mapping[str, Any]], None]],
        threads: tuple[int, int],
        refusals: Mapping[type[Exception], str] | None = None,
        send: Callable[[bytes], memoryview | None] = lambda _: None,
        receive: Receive | None = None,
        blob_bytes: int = 1 << 30,
        max_body: int = MAX_BODY,
        note: Callable[[str], None] = _log.warning,
    ) -> None:
        if not token:
            raise ValueError("expected a token, got none")
        if tls is not None:
            check_tls(tls)
        self._actions, self._token, self._content, self._waiting = actions, b"Bearer " + token, content, waiting
        self._refusals = refusals or {}
        self._send, self._receive, self._max_body, self._note = send, receive, max_body, note
        self.blobs = BlobStore(blob_bytes)
        self._slow, self._quick = (ThreadPoolExecutor(number, "wire") for number in threads)
        self._headers = {VERSION_HEADER: VERSION, "bepa-instance": instance, "bepa-content": content}
        self._peers: dict[str, _Watch] = {}  # by the client's name
        self._ready, self._told = threading.Event(), threading.Event()
        self._failure: BaseException | None = None  # before it listened
        self._http = _Http(self._config(tls), self._ready.set)
        self._socket = _listener(address, option)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.url = f"{'http' if tls is None else 'https'}://{address_text(self.address)}"
        self._thread = threading.Thread(target=self._run, name="wire: server", daemon=True)
        self._start(option)

    def peers(self) -> list[str]:
        """HOST:PORT of each client that watches this server."""
        return [watch.where for watch in list(self._peers.values())]

    def close(self) -> None:
        """Tells the clients that watch that this is the end, waits some seconds until they know, and ends."""
        with suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._end)
            self._told.wait(_CLOSE_SECONDS)
        self._http.should_exit = True
        self._thread.join(2 * _CLOSE_SECONDS)
        for threads in (self._slow, self._quick):
            threads.shutdown(wait=False, cancel_futures=True)

    def _config(self, tls: Tls | None) -> uvicorn.Config:
        app = Starlette(
            exception_handlers={404: self._unknown, 405: self._unknown},
            routes=[
                Route("/watch", self._guarded(self._watch), methods=["POST"]),
                Route("/blob/{name}", self._guarded(self._get), methods=["GET"]),
                Route("/blob/{name}", self._guarded(self._put), methods=["PUT"]),
                Route("/{kind:path}", self._guarded(self._act), methods=["GET", "POST", "PUT"]),
            ],
        )
        files = {} if tls is None else {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
        return uvicorn.Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            **files,  # type: ignore[arg-type]
        )

    def _start(self, option: str) -> None:
        """Starts the thread. Raises OSError, with the socket closed, unless it listens in time."""
        try:
            self._thread.start()
            listens, problem = self._ready.wait(START_SECONDS), self._failure
        except RuntimeError as error:  # no thread can be started
            listens, problem = False, error
        if listens and problem is None:
            return
        self._http.should_exit = True
        self._socket.close()
        reason = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
        if problem is None:
            reason = f"not within {START_SECONDS:g} s"
        raise OSError(f"no server at {address_text(self.address)} ({option}): {reason}") from problem

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.get_loop()  # may fail, before there is a coroutine to wait for
                runner.run(self._serve())
        except BaseException as error:
            if self._ready.is_set():
                raise
            self._failure = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        await self._http.serve(sockets=[self._socket])

    def _end(self) -> None:
        self._ended.set()
        if not self._peers:
            self._told.set()

    # --- requests -----------------------------------------------------------------------------------------------

    def _guarded(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Checks token, version and end; makes errors of refusals."""

        async def answer(request: Request) -> Response:
            try:
                self._check(request)
                return await handle(request)
            except Refusal as refusal:
                return self._error(refusal.kind, str(refusal))
            except tuple(self._refusals) as error:
                return self._error(next(k for kind, k in self._refusals.items() if isinstance(error, kind)), str(error))
            except ProtocolError as error:
                return self._error("refused", str(error))
            except (KeyError, TypeError, ValueError) as error:
                return self._error("refused", f"{type(error).__name__}: {error}")
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001  stated to the client, which tries again
                _log.warning("%s failed: %s: %s", request.url.path, type(error).__name__, error)
                return self._error("failed", f"{type(error).__name__}: {error}")

        return answer

    async def _unknown(self, request: Request, _: Exception) -> Response:
        """Answers what no route is for; the token is checked here, too: who has none is not let hold a connection."""

        async def refuse(request: Request) -> Response:
            raise Refusal("unknown", f"unknown request {request.method} {request.url.path!r}")

        return await self._guarded(refuse)(request)

    def _check(self, request: Request) -> None:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode("latin-1"), self._token):
            self._note(f"a request from {_peer(request)} is refused: a wrong token")
            raise Refusal("token", "another token than the server's; give both sides the same")
        try:
            check_version(request.headers.get(VERSION_HEADER), _peer(request))
        except ProtocolError as error:
            self._note(f"a request from {_peer(request)} is refused: {error}")
            raise Refusal("version", str(error)) from error
        if (request.headers.get("bepa-content") or self._content) != self._content:
            raise Refusal("ended", f"another run listens at {request.headers.get('host')} now; start again to play it")

    async def _act(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        action = self._actions.get(kind)
        if action is None or request.method != "POST":
            raise Refusal("unknown", f"unknown request {request.method} {kind!r}; known: {', '.join(self._actions)}")
        self._check_open()
        body = await self._body(request)
        fields, blobs, missing = await asyncio.wrap_future(self._quick.submit(self._opened, body))
        if missing:
            return self._answer({"missing": missing})
        waits = kind in self._waiting
        result = (self._slow if waits else self._quick).submit(action, Call(fields, blobs))
        if waits:
            return self._answer(await self._waited(request, result, self._waiting[kind]))
        return self._answer(await asyncio.wrap_future(result))

    def _opened(self, data: bytes) -> tuple[Mapping[str, Any], dict[bytes, bytes], list[bytes]]:
        """The fields of a body, the content that it needs, and what is missing of it."""
        body = unpack(data)
        return body["fields"], *self.blobs.collect(body["needs"], body["blobs"])

    async def _waited(
        self, request: Request, result: Future[Mapping[str, Any]], undo: Callable[[Mapping[str, Any]], None]
    ) -> Mapping[str, Any]:
        """The result; if the client has gone or the server ends before there is one, it is taken back."""
        ready = asyncio.Event()
        result.add_done_callback(lambda _: self._unless_ended(self._loop.call_soon_threadsafe, ready.set))
        gone, *_ = await self._first(_disconnected(request), ready.wait(), self._ended.wait())
        if gone or not result.done():
            result.add_done_callback(lambda done: self._unless_ended(self._quick.submit, _take_back, done, undo))
            self._check_open()
            raise ClientDisconnect
        return result.result()

    def _unless_ended(self, schedule: Callable[..., object], *arguments: object) -> None:
        """Schedules something, unless this server has ended meanwhile."""
        with suppress(RuntimeError):
            schedule(*arguments)

    async def _first(self, *events: Coroutine[Any, Any, object], timeout: float | None = None) -> list[bool]:
        """Which of these have happened when the first one does, or after ``timeout`` seconds."""
        tasks = [asyncio.ensure_future(event) for event in events]
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        happened = [task.done() for task in tasks]
        for task in tasks:
            task.cancel()
        return happened

    async def _watch(self, request: Request) -> Response:
        """Waits for the end."""
        name, fields = request.headers.get("bepa-peer", ""), unpack(await self._body(request))
        last = self._peers.get(name)
        if fields.get("leaves"):
            if last is not None:
                last.left.set()
                self._forget(name, last, "it has left")
            return self._answer({})
        timeout = _waits(fields)
        if last is None:
            self._note(f"a rollout cluster at {_peer(request)} is connected")
        watch = self._peers[name] = _Watch(_peer(request), asyncio.Event())
        gone, *_ = await self._first(_disconnected(request), self._ended.wait(), watch.left.wait(), timeout=timeout)
        if self._ended.is_set():
            self._peers.pop(name, None)
            if not self._peers:
                self._told.set()
        elif gone:
            self._forget(name, watch, "its connection has ended")
        else:
            self._loop.call_later(IDLE_SECONDS, self._forget, name, watch, f"no request for {IDLE_SECONDS:g} s")
        self._check_open()
        return self._answer({})

    def _forget(self, name: str, watch: _Watch, reason: str) -> None:
        """Unless the client has come again since that watch."""
        if self._peers.get(name) is watch:
            del self._peers[name]
            if not self._ended.is_set():
                self._note(f"the rollout cluster at {watch.where} is disconnected: {reason}")

    async def _get(self, request: Request) -> Response:
        data, offset = self._send(_name(request)), int(request.query_params.get("offset", "0"))
        if data is None or not 0 <= offset <= len(data):
            raise Refusal("gone", "there is no such content any more")
        rest = data[offset:]

        async def parts() -> AsyncIterator[memoryview]:
            for start in range(0, len(rest), CHUNK):
                yield rest[start : start + CHUNK]

        return StreamingResponse(parts(), headers={**self._headers, "content-length": str(len(rest))})

    async def _put(self, request: Request) -> Response:
        if self._receive is None:
            raise Refusal("unknown", "unknown request PUT")
        await self._receive(_name(request), _parts(request))
        return self._answer({})

    async def _body(self, request: Request) -> bytes:
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            raise Refusal("refused", "expected a Content-Length")
        if int(length) > self._max_body:
            raise Refusal("large", f"expected a body of at most {self._max_body} bytes, got {length}")
        return b"".join([part async for part in _parts(request)])

    def _check_open(self) -> None:
        if self._ended.is_set():
            raise Refusal("ended", "the training has ended")

    def _answer(self, fields: Mapping[str, Any]) -> Response:
        return Response(pack(fields), headers=self._headers, media_type="application/msgpack")

    def _error(self, kind: str, message: str) -> Response:
        body = json.dumps({"error": kind, "message": message})
        headers = self._headers | ({"connection": "close"} if kind in _UNREAD else {})
        return Response(body, _STATUS.get(kind, 400), headers=headers, media_type="application/json")


def _listener(address: tuple[str, int], option: str) -> socket.socket:
    """The socket that listens. Raises OSError if the address cannot be used."""
    found = listening_socket(address, option, backlog=_CONNECTIONS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # its connections inherit that
    return found


def _waits(fields: Mapping[str, Any]) -> float:
    return min(MAX_WAIT, max(0.0, float(fields["timeout"])))


def _take_back(result: Future[Mapping[str, Any]], undo: Callable[[Mapping[str, Any]], None]) -> None:
    if not result.cancelled() and result.exception() is None:
        undo(result.result())


async def _disconnected(request: Request) -> None:
    """Returns when the client has gone; its body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _parts(request: Request) -> AsyncIterator[bytes]:
    """The body, as it comes. Raises Refusal after :data:`IDLE_SECONDS` without a byte."""
    stream = request.stream()
    while True:
        try:
            yield await asyncio.wait_for(anext(stream), IDLE_SECONDS)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refusal("slow", f"no byte of the body for {IDLE_SECONDS:g} s") from None


def _name(request: Request) -> bytes:
    name = bytes.fromhex(request.path_params["name"])
    if len(name) != 32:
        raise Refusal("refused", "expected a SHA-256")
    return name


def _peer(request: Request) -> str:
    client = request.client
    return "unknown" if client is None else address_text((client.host, client.port))
