"""A real HTTP server that answers chat completions from a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Reply:
    """What the server sends.

    Args:
        text: the answer, or the whole body if ``raw``.
        status: HTTP status.
        raw: whether the text is the body.
        kind: content type of a raw body.
        headers: further headers.
        hold: the reply is sent when this is set, at most 30 s later.
    """

    text: str = ""
    status: int = 200
    raw: bool = False
    kind: str = "text/html"
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None


class ChatServer:
    """``script`` maps the request's JSON to a reply; ``requests`` are those that came."""

    def __init__(self, script: Callable[[dict[str, Any]], Reply]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.open = self.most = 0
        lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    outer.requests.append(request)
                    outer.open += 1
                    outer.most = max(outer.most, outer.open)
                reply = script(request)
                if reply.hold is not None:
                    reply.hold.wait(30.0)
                with lock:
                    outer.open -= 1
                message = {"role": "assistant", "content": reply.text}
                body: Any = {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": request["model"],
                    "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                    "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
                }
                if reply.status != 200:
                    body = {"error": {"message": reply.text}}
                data = reply.text.encode() if reply.raw else json.dumps(body).encode()
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.kind if reply.raw else "application/json")
                self.send_header("Content-Length", str(len(data)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)


@contextmanager
def chat_server(script: Callable[[dict[str, Any]], Reply]) -> Iterator[ChatServer]:
    """A server on this machine."""
    server = ChatServer(script)
    try:
        yield server
    finally:
        server.close()
