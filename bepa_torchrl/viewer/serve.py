"""Serves the folder of pages on this machine only, and writes it again while a run goes on."""

from __future__ import annotations

import io
import secrets
import sys
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO

from bepa_torchrl.experts.trace import TraceError
from bepa_torchrl.storage.json_lines import RecordError
from bepa_torchrl.viewer.site import Site

HOST = "127.0.0.1"
CHANGES = "/changes"  #: path, after the secret, of the number that the pages ask for, which grows with each change
_PAUSE = 2.0  #: seconds between two looks at the run


class PagesServer(ThreadingHTTPServer):
    """A server of a site's pages at :data:`HOST`. The address contains a secret, as other users can reach it, too.

    Args:
        site: whose pages are written.
        port: 0: any free one.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, site: Site, port: int) -> None:
        super().__init__((HOST, port), partial(_Handler, directory=str(site.out)))
        self.site, self.changes, self.secret = site, 0, secrets.token_urlsafe(16)
        self._lock, self._looked = threading.Lock(), monotonic()

    @property
    def address(self) -> str:
        """The URL to open."""
        return f"http://{HOST}:{self.server_port}/{self.secret}/"

    def look(self) -> int:
        """Writes what has changed in the runs, if the last look was long enough ago; returns the number of changes.

        Raises:
            OSError, RecordError, TraceError: the runs cannot be read, or the pages not written; the pages remain.
        """
        with self._lock:
            if monotonic() - self._looked >= _PAUSE:
                self.changes += self.site.refresh()
                self._looked = monotonic()
            return self.changes

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints what went wrong; a browser that leaves before it has everything is no error."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(SimpleHTTPRequestHandler):
    """Serves files, and :data:`CHANGES`. Refuses requests without the secret, or by another name (DNS rebinding)."""

    server: PagesServer
    timeout = 60  #: seconds that a connection may be silent

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def _answer(self, send_file: Callable[[], None]) -> None:
        secret = f"/{self.server.secret}"
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            return self.send_error(403, "use the address that bepa view has printed")
        if not self.path.startswith(f"{secret}/"):
            return self.send_error(404, "use the address that bepa view has printed")
        self.path = self.path.removeprefix(secret)
        if self.path == CHANGES:
            self._send_changes()
        else:
            send_file()

    def _send_changes(self) -> None:
        """The number of changes; with status 503 why the runs cannot be read."""
        try:
            status, text = HTTPStatus.OK, str(self.server.look())
        except (OSError, RecordError, TraceError) as error:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, str(error)
        body = text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        try:
            return super().send_head()
        except ValueError:  # a name that no file can have, such as one with a null byte
            self.send_error(404, "no such page")
            return None

    def end_headers(self) -> None:
        fixed = getattr(self, "path", "").startswith("/images/")  # named by their hash; no path: not HTTP
        self.send_header("Cache-Control", "max-age=31536000, immutable" if fixed else "no-cache")
        # the data are scripts, which a page of any other site could run, and so read, without this
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def list_directory(self, _path: str | Path) -> None:  # type: ignore[override]
        """No lists of files."""
        self.send_error(404, "no such page")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not printed."""
