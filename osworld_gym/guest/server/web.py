"""The HTTP server in front of the endpoints: token, JSON and form bodies, limits. One thread per connection."""

from __future__ import annotations

import errno
import io
import json
import logging
import socket
import threading
import time
from _operator import _compare_digest as compare_digest  # hmac, which exports it, imports OpenSSL
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from .answers import Answer, BadRequest, Table, as_json, failed, multipart_fields
from .connection_limit import Connection, ConnectionLimit
from .deadline_socket import DeadlineSocket

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LOG = logging.getLogger(__name__)
MAX_BODY = 8 << 20  # largest request in bytes, except for uploads
MAX_UPLOAD = 600 << 20  # largest multipart form in bytes
BIG_BODY = 8 << 20  # bytes from which requests are handled one at a time, to limit memory
BODY_TIMEOUT = 60.0  # seconds without data after which a request's body is given up
HEAD = 10.0  # seconds from the first byte of a request to the end of its head
IDLE = 60.0  # seconds without a request after which a connection that has shown no token is closed
MAX_WITHOUT_TOKEN = 128  # most connections that have shown no token
DIGITS = 12  # most digits of a Content-Length
PART = 1 << 20  # bytes of a body that are read at once
SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED)  # accept() works again later
RETRY = 0.05  # seconds until then


class GuestServer:
    """Serves connections that it is given, or those of a listening socket.

    Args:
        table: the endpoints, by method and path.
        token: the required token of ``Authorization: Bearer``; empty: no token is required.
        ending: whether the desktop is being ended. From then on connections are closed without a reply: the result of
            a command that is killed with its desktop is no result.
    """

    def __init__(self, table: Table, token: str, ending: Callable[[], bool]) -> None:
        self.table, self.token, self.ending = table, token, ending
        self.big = threading.Lock()
        self.without_token = ConnectionLimit(MAX_WITHOUT_TOKEN)

    def listen(self, listener: socket.socket) -> None:
        """Serves each connection of a listening socket, each in a thread, until it is closed."""
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    connection = DeadlineSocket.of(listener.accept()[0])
                except OSError as error:
                    if error.errno in SHORT:
                        time.sleep(RETRY)  # there is no event for a file that another thread closes
                        continue
                    return
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    threading.Thread(target=self._serve_socket, args=(connection,), daemon=True).start()
                except RuntimeError:  # no more threads: the desktop's limit of processes is reached
                    connection.close()

    def _serve_socket(self, connection: DeadlineSocket) -> None:
        with connection:
            self.serve(connection)

    def serve(self, connection: Connection) -> None:
        """Serves the requests of a connection until it ends; the caller closes it."""
        if not self.without_token.admit(connection):
            return
        try:
            GuestRequest(connection, ("", 0), self)  # type: ignore[arg-type]  # the base class wants a socket and server
        except OSError:
            LOG.debug("a connection broke", exc_info=True)  # handling it is up to the client
        finally:
            self.without_token.remove(connection)


class GuestRequest(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: GuestServer  # type: ignore[assignment]  # not one of socketserver
    request: Connection

    def setup(self) -> None:
        self.rfile = self._reader = self.request.makefile("rb")
        self.wfile = io.BufferedWriter(_Writer(self.request), 1 << 16)  # so that headers and body are sent together

    def handle_one_request(self) -> None:
        """One request. Its head has a time limit; and so has waiting for it, if the connection has shown no token."""
        limited = self.server.without_token.waits(self.request)
        self.request.until = monotonic() + IDLE if limited else inf
        try:
            self._reader.peek(1)
        except TimeoutError:
            self.close_connection = True
            return
        self.request.until = monotonic() + HEAD
        super().handle_one_request()  # ends the connection at a timeout

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)

    def _answer(self, method: str) -> None:
        self.server.without_token.works(self.request)
        self.request.until = inf
        kind = self.headers.get("Content-Type", "")
        try:
            path = urlsplit(self.path).path
        except ValueError as error:
            return self._refuse(as_json({"error": f"expected a path, got {self.path[:100]!r}: {error}"}, 400))
        refusal = self._refusal(method, path, kind)
        if refusal is not None:
            return self._refuse(refusal)
        length = int(self.headers.get("Content-Length", "0"))
        if length < BIG_BODY:
            return self._send(self._call(method, path, kind, length))
        with self.server.big:
            answer = self._call(method, path, kind, length)
        self._send(answer)

    def _refuse(self, refusal: Answer) -> None:
        self.close_connection = True  # the body has not been read
        self._send(refusal)

    def _refusal(self, method: str, path: str, kind: str) -> Answer | None:
        """The error reply to a request that is refused without reading its body; None if it is accepted."""
        if self.server.token:
            given = self.headers.get("Authorization", "")
            if not compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
                return as_json({"error": "the bearer token is missing or wrong"}, 401)
            self.server.without_token.remove(self.request)
        if (method, path) not in self.server.table:
            known = any(other == path for _, other in self.server.table)
            return as_json({"error": f"no {method} {path}"}, 405 if known else 404)
        if "Transfer-Encoding" in self.headers:
            return as_json({"error": "expected Content-Length, got Transfer-Encoding"}, 411)
        length = self.headers.get("Content-Length", "0")
        limit = MAX_UPLOAD if kind.startswith("multipart/form-data") else MAX_BODY
        if not (length.isascii() and length.isdigit()):
            return as_json({"error": f"Content-Length: expected a number, got {length[:100]!r}"}, 400)
        if len(length) > DIGITS or int(length) > limit:
            return as_json({"error": f"Content-Length: expected at most {limit}, got {length[:100]}"}, 413)
        return None

    def _body(self, length: int) -> bytes | None:
        """The request's body; None if it ends early, or no more of it comes for a while."""
        parts = []
        try:
            while length:
                self.request.until = monotonic() + BODY_TIMEOUT
                part = self._reader.read1(min(length, PART))
                if not part:
                    return None
                parts.append(part)
                length -= len(part)
        except TimeoutError:
            return None
        finally:
            self.request.until = inf
        return b"".join(parts)

    def _call(self, method: str, path: str, kind: str, length: int) -> Answer:
        body = self._body(length)
        if body is None:
            self.close_connection = True
            return as_json({"error": f"the body ended or stopped before its {length} bytes"}, 400)
        try:
            return self.server.table[method, path](_fields(kind, body))
        except BadRequest as error:
            return as_json({"status": "error", "error": str(error), "message": str(error)}, 400)
        except Exception as error:
            LOG.exception("%s %s", method, path)
            return failed(f"{type(error).__name__}: {error}")

    def _send(self, answer: Answer) -> None:
        if self.server.ending():  # asked after the answer was made, and true before the first process is killed
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)


def _fields(kind: str, body: bytes) -> Mapping[str, Any]:
    """The body's fields: JSON object, url-encoded form, or multipart form (files as bytes)."""
    if not body:
        return {}
    if kind.startswith("application/x-www-form-urlencoded"):
        return {key: values[-1] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}
    if kind.startswith("multipart/form-data"):
        return multipart_fields(kind, body)
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"the body: expected a JSON object, got {type(fields).__name__}")
    return fields


class _Writer(io.RawIOBase):
    """Writes to a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        self._connection.sendall(data)
        return len(memoryview(data).cast("B"))
