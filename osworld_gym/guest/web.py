"""HTTP around the handlers: routes, token, JSON and form bodies. A thread for each connection, kept alive."""

from __future__ import annotations

import email.policy
import hmac
import json
import logging
import socket
from collections.abc import Callable, Mapping
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from Xlib.error import ConnectionClosedError, XError

from .handlers import Answer, BadRequest, Handlers, as_json

LOG = logging.getLogger(__name__)
MAX_BODY = 512 * 1024 * 1024  # bytes


def routes(handlers: Handlers) -> dict[tuple[str, str], Callable[[Mapping[str, Any]], Answer]]:
    """(method, path) → what answers, given the body's fields."""
    h = handlers
    table: dict[tuple[str, str], Callable[[Mapping[str, Any]], Answer]] = {
        ("GET", "/health"): lambda _: h.health(),
        ("GET", "/screenshot"): lambda _: h.screenshot(),
        ("GET", "/platform"): lambda _: h.platform(),
        ("GET", "/cursor_position"): lambda _: h.cursor_position(),
        ("GET", "/terminal"): lambda _: h.terminal(),
        ("GET", "/windows"): lambda _: h.window_list(),
        ("POST", "/observe"): h.observe,
        ("POST", "/actions"): h.actions,
        ("POST", "/seed"): h.seed,
        ("POST", "/screen_size"): lambda _: h.screen_size(),
        ("POST", "/file"): h.file,
    }
    both = {"execute": h.execute, "launch": h.launch, "open_file": h.open_file, "upload": h.upload}
    both |= {"activate_window": h.activate_window, "close_window": h.close_window}
    table |= {("POST", f"/setup/{name}"): answer for name, answer in both.items()}
    return table | {("POST", "/execute"): h.execute}


class GuestServer(ThreadingHTTPServer):
    """Serves on a socket that already listens.

    Args:
        handlers: the endpoints.
        token: what ``Authorization: Bearer`` must carry; empty means that everybody may ask.
        listener: the listening socket, taken over.
    """

    daemon_threads = True

    def __init__(self, handlers: Handlers, token: str, listener: socket.socket) -> None:
        super().__init__(listener.getsockname()[:2], GuestRequest, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.table, self.token = routes(handlers), token


class GuestRequest(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one piece
    server: GuestServer

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def log_message(self, format: str, *args: Any) -> None:
        LOG.debug(format, *args)

    def _answer(self, method: str) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True
            return self._send(as_json({"error": f"Content-Length wants 0 to {MAX_BODY}, got {length!r}"}, 413))
        body = self.rfile.read(int(length))
        self._send(self._route(method, body))

    def _route(self, method: str, body: bytes) -> Answer:
        given = self.headers.get("Authorization", "")
        if self.server.token and not hmac.compare_digest(given.encode(), f"Bearer {self.server.token}".encode()):
            return as_json({"error": "the bearer token is missing or wrong"}, 401)
        answer = self.server.table.get((method, urlsplit(self.path).path))
        if answer is None:
            return as_json({"error": f"no {method} {self.path}"}, 404)
        try:
            return answer(self._fields(body))
        except BadRequest as error:
            return as_json({"status": "error", "error": str(error), "message": str(error)}, 400)
        except (OSError, ValueError, XError, ConnectionClosedError) as error:
            LOG.exception("%s %s", method, self.path)
            return as_json({"status": "error", "message": f"{type(error).__name__}: {error}"}, 500)

    def _fields(self, body: bytes) -> Mapping[str, Any]:
        """The body's fields: JSON object, url-encoded form, or multipart form (files as bytes)."""
        kind = self.headers.get("Content-Type", "")
        if not body:
            return {}
        if kind.startswith("application/x-www-form-urlencoded"):
            return {key: values[-1] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if kind.startswith("multipart/form-data"):
            return _multipart(kind, body)
        try:
            fields = json.loads(body)
        except ValueError as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise BadRequest(f"the body wants a JSON object, got {type(fields).__name__}")
        return fields

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)


def _multipart(kind: str, body: bytes) -> dict[str, Any]:
    message = BytesParser(policy=email.policy.HTTP).parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    fields: dict[str, Any] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(data, bytes):
            fields[name] = data if part.get_filename() is not None else data.decode("utf-8", "replace")
    return fields
