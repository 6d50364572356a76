"""Guest servers in memory: ours or an official one, as far as the remote provider asks. Real HTTP on real ports."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from PIL import Image


class MemoryServer(ThreadingHTTPServer):
    """One desktop: a screen of one colour and a file system in a dict. ``renew()`` makes it new."""

    daemon_threads = True

    def __init__(self, ours: bool, token: str = "", size: tuple[int, int] = (320, 240)) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.ours, self.token, self.size = ours, token, size
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.posted: list[Any] = []
        self.seeds: list[int] = []
        self.hook_renews = True
        self.alive = True
        self.gateway: int | None = None  # the status of a gateway whose machine is gone
        self.hold = threading.Event()  # not set: the hook does not answer yet
        self.hold.set()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{self.token + '@' if self.token else ''}127.0.0.1:{self.server_port}"

    def renew(self) -> None:
        self.files = {}

    def stop(self) -> None:
        """Ends it, also on connections that are open. May be called twice."""
        self.alive = False
        self.shutdown()
        self.server_close()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: MemoryServer

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        server = self.server
        server.asked.append(self.path)
        if not server.alive:
            self.close_connection = True
            return None
        if server.gateway is not None:
            return self._send(server.gateway, b'{"message": "no healthy upstream"}')
        if self.path == "/hook":
            server.hold.wait(30)
            server.posted.append(json.loads(body))
            if server.hook_renews:
                server.renew()
            return self._send(200, b"{}")
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self._send(401, b'{"error": "token"}')
        if self.path == "/health" and server.ours:
            return self._send(200, b'{"status": "ok"}')
        if self.path == "/seed" and server.ours:
            server.seeds.append(json.loads(body)["seed"])
            return self._send(200, b"{}")
        if self.path == "/windows" and server.ours:
            return self._send(200, b'{"windows": [{"title": "Text editor"}], "popups": [{"x": 1}]}')
        if self.path == "/screen_size":
            return self._send(200, json.dumps(dict(zip(("width", "height"), server.size, strict=True))).encode())
        if self.path in ("/screenshot", "/observe") and (self.path == "/screenshot" or server.ours):
            return self._send(200, _png(server.size))
        if self.path == "/file":
            data = server.files.get(parse_qs(body.decode())["file_path"][0])
            return self._send(404, b"{}") if data is None else self._send(200, data)
        if self.path == "/setup/upload":
            name, _, rest = body.partition(b'name="file_path"\r\n\r\n')[2].partition(b"\r\n")
            data = rest.partition(b"\r\n\r\n")[2].rpartition(b"\r\n--")[0]
            server.files[name.decode()] = data
            return self._send(200, b"File Uploaded")
        self._send(404, b"<!doctype html>\n<title>404 Not Found</title>\n")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _png(size: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (10, 20, 30)).save(buffer, "PNG")
    return buffer.getvalue()
