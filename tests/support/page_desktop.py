"""A desktop with a browser of one page, for tests of tasks on web sites: no X server, no Chromium.

Its browser answers on Chrome's debugging port like Chrome. Text that is typed with a line end searches the site:
``lamp\\n`` leads to ``…?q=lamp``. A site whose host begins with ``gone`` cannot be reached.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from osworld_gym.desktops import PROVIDERS
from osworld_gym.desktops.base import Desktop
from osworld_gym.tasks.setup.chrome import CHROME_PORT
from osworld_gym.types import Action, CommandResult, Screenshot

WIDTH, HEIGHT = 64, 48


class PageDesktop(Desktop):
    """The desktop.

    Args:
        proxy: what a user allows; it is not used.
    """

    def __init__(self, proxy: str | None = None) -> None:
        del proxy
        self.pages: list[dict[str, str]] = []
        self.launched: list[Sequence[str]] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def screen_size(self) -> tuple[int, int]:
        return WIDTH, HEIGHT

    def reset(self, seed: int) -> None:
        del seed
        self.pages = [{"type": "page", "id": "0", "url": "chrome://newtab/", "title": "New Tab"}]
        self.launched = []
        if self._server is None:
            self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
            self._server.daemon_threads = True
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def screenshot(self) -> Screenshot:
        shade = zlib.crc32(self.pages[0]["url"].encode()) % 200
        return Screenshot(pixels=np.full((HEIGHT, WIDTH, 3), shade, np.uint8))

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if action.kind == "type" and (action.content or "").endswith("\n"):
                self.pages[0]["url"] += f"?q={(action.content or '').strip()}"

    def setup(self, step: Mapping[str, Any]) -> None:
        assert step["type"] == "launch", step
        self.launched.append(step["parameters"]["command"])

    def run(self, command: str | Sequence[str], *, shell: bool = False, timeout: float = 30.0) -> CommandResult:
        assert not shell
        assert timeout > 0
        gone = (urlsplit(command[-1]).hostname or "").startswith("gone")
        return CommandResult(int(gone), "", "OSError: Tunnel connection failed: 502 Bad Gateway\n" if gone else "")

    def read_file(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    def write_file(self, path: str, data: bytes) -> None:
        raise AssertionError(f"nothing here writes {len(data)} bytes to {path}")

    def forwarded(self, port: int) -> tuple[str, int] | None:
        return None if port != CHROME_PORT or self._server is None else ("127.0.0.1", self._server.server_port)

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        desktop = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.path.startswith("/json/close/"):
                    desktop.pages = [page for page in desktop.pages if page["id"] != self.path.rsplit("/", 1)[-1]]
                self.answer({"Browser": "Chrome/1"} if self.path == "/json/version" else desktop.pages)

            def do_PUT(self) -> None:
                url = unquote(self.path.partition("?")[2])
                page = {"type": "page", "id": str(len(desktop.pages)), "url": url, "title": url}
                desktop.pages.insert(0, page)
                self.answer(page)

            def answer(self, data: object) -> None:
                body = json.dumps(data).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                return

        return Handler


PROVIDERS["pages"] = PageDesktop
