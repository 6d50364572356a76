"""The HTTP server in front of the endpoints: token, JSON and form bodies, size limits. One thread per connection."""

from __future__ import annotations

import json
import logging
import socket
import threading
from _operator import _compare_digest as compare_digest  # hmac, which exports it, imports OpenSSL
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .answers import Answer, BadRequest, Table, as_json, failed
from .multipart import multipart_fields

LOG = logging.getLogger(__name__)
MAX_BODY = 8 << 20  # largest request in bytes, except for uploads
MAX_UPLOAD = 600 << 20  # largest multipart form in bytes
BIG_BODY = 8 << 20  # bytes from which requests are handled one at a time, to limit memory
BODY_TIMEOUT = 60.0  # seconds without data after which a request's body is given up


class GuestServer(ThreadingHTTPServer):
    """Serves on a socket that already listens.

    Args:
        table: the endpoints.
        token: the required token of ``Authorization: Bearer``; empty: no token is required.
        listener: the listening socket; the server owns and closes it.
        ending: whether the desktop is being ended. From then on connections are closed without a reply: the result of
            a command that is killed with its desktop is no result.
    """

    daemon_threads = True

    def __init__(self, table: Table, token: str, listener: socket.socket, ending: Callable[[], bool]) -> None:
        super().__init__(listener.getsockname()[:2], GuestRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.table, self.token, self.ending = table, token, ending
        self.big = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class names it
        """Logs a broken connection at debug level only: handling it is up to the client."""
        LOG.debug("connection of %s broke", client_address, exc_info=True)


class GuestRequest(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered, so that headers and body are sent together
    server: GuestServer

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)

    def _answer(self, method: str) -> None:
        path, kind = urlsplit(self.path).path, self.headers.get("Content-Type", "")
        refusal = self._refusal(method, path, kind)
        if refusal is not None:
            self.close_connection = True  # the body has not been read
            return self._send(refusal)
        length = int(self.headers.get("Content-Length", "0"))
        if length < BIG_BODY:
            return self._send(self._call(method, path, kind, length))
        with self.server.big:
            answer = self._call(method, path, kind, length)
        self._send(answer)

    def _refusal(self, method: str, path: str, kind: str) -> Answer | None:
        """The error reply to a request that is refused without reading its body; None if it is accepted."""
        given = self.headers.get("Authorization", "")
        if self.server.token and not compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            return as_json({"error": "the bearer token is missing or wrong"}, 401)
        if (method, path) not in self.server.table:
            known = any(other == path for _, other in self.server.table)
            return as_json({"error": f"no {method} {path}"}, 405 if known else 404)
        if "Transfer-Encoding" in self.headers:
            return as_json({"error": "expected Content-Length, got Transfer-Encoding"}, 411)
        length = self.headers.get("Content-Length", "0")
        limit = MAX_UPLOAD if kind.startswith("multipart/form-data") else MAX_BODY
        if not (length.isascii() and length.isdigit()) or int(length) > limit:
            return as_json({"error": f"Content-Length: expected 0 to {limit}, got {length!r}"}, 413)
        return None

    def _call(self, method: str, path: str, kind: str, length: int) -> Answer:
        self.connection.settimeout(BODY_TIMEOUT)
        try:
            body = self.rfile.read(length)
        except TimeoutError:
            body = b""
        self.connection.settimeout(None)
        if len(body) < length:
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
