"""A guest server that a policy has replaced, and desktops that are already running behind it; fixtures of tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.guest_server.official_desktop import OfficialDesktop

SIZE = (64, 48)
KINDS = (GuestDesktop, OfficialDesktop)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(name="server")
def server_fixture() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


Running = Callable[[type[GuestDesktop]], GuestDesktop]


@pytest.fixture(name="desktop")
def desktop_fixture(server: Any) -> Iterator[Running]:
    """Makes a desktop of a kind that is already running behind the server."""
    clients = []

    def running(kind: type[GuestDesktop]) -> GuestDesktop:
        class Desktop(kind):  # type: ignore[misc, valid-type]
            def reset(self, seed: int) -> None: ...
            def close(self) -> None: ...

        made: GuestDesktop = Desktop(*SIZE)
        made._client = GuestClient("127.0.0.1", server.server_address[1])
        clients.append(made._client)
        return made

    yield running
    for client in clients:
        client.close()
