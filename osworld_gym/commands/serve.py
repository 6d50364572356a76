"""``osworld-gym serve``: runs a local desktop with OSWorld's guest server, for a harness with its own client."""

from __future__ import annotations

import argparse
import secrets
import signal
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from osworld_gym.commands.arguments import port_number, require_free, screen_size
from osworld_gym.commands.output import INFRASTRUCTURE
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.guest.ports import CHROME, VLC

PASSWORD_FILE = ".config/osworld-gym-password"  # read by the desktop's sudo (guest/shims/bin/sudo)


class ServedDesktop(LocalDesktop):
    """The desktop of ``osworld-gym serve``.

    Args:
        width: screen width in pixels.
        height: screen height in pixels.
        port: port of the guest server on 127.0.0.1; 0: a free one, a different one after each reset.
        token: required bearer token of every request; empty: none is required, as on OSWorld's machine.
        client_password: the password that ``sudo`` accepts inside.
        options: further options of :class:`LocalDesktop`.
    """

    def __init__(
        self,
        width: int,
        height: int,
        *,
        port: int,
        token: str,
        client_password: str = LocalDesktop.client_password,
        **options: Any,
    ) -> None:
        super().__init__(width, height, **options)
        self.client_password = client_password
        self._setting = replace(self._setting, port=port)
        self._fixed_token = token

    def reset(self, seed: int) -> None:
        super().reset(seed)
        if self.client_password != LocalDesktop.client_password:
            self.write_file(PASSWORD_FILE, self.client_password.encode())

    def _new_token(self) -> str:
        return self._fixed_token

    @property
    def running(self) -> bool:
        """Whether the desktop is running."""
        process = self._guest_process
        return process is not None and process.running


CHECK = 1.0  # seconds between two checks that the desktop is running
NOTES = """The server speaks OSWorld's protocol (docs/guest.md) and listens on 127.0.0.1 only. OSWorld's own client
sends no token: use --no-token for it, and give it the ports that are printed. SIGHUP makes the desktop new, on the
same port; SIGINT (Ctrl-C) and SIGTERM end it."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    text = "serve a local desktop to another OSWorld harness"
    parser = commands.add_parser("serve", help=text, description=text, epilog=NOTES)
    parser.add_argument("--port", type=port_number, default=0, help="port of the guest server (default: a free one)")
    parser.add_argument("--no-token", action="store_true", help="require no token, for OSWorld's own client")
    parser.add_argument("--screen", type=screen_size, default=(1920, 1080), metavar="WxH", help="default: 1920x1080")
    parser.add_argument("--seed", type=int, default=0, help="seed of the desktop (default: 0)")
    own = ServedDesktop.client_password
    text = f"what sudo accepts inside, DesktopEnv's client_password (default: {own})"
    parser.add_argument("--client-password", default=own, help=text)
    parser.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    require_free(arguments.port)
    signals: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: signals.put(received))
    token = "" if arguments.no_token else secrets.token_urlsafe(16)
    password = arguments.client_password
    with ServedDesktop(*arguments.screen, port=arguments.port, token=token, client_password=password) as desktop:
        desktop.reset(arguments.seed)
        _explain(desktop)
        while desktop.running:
            try:
                received = signals.get(timeout=CHECK)
            except Empty:
                continue
            if received != signal.SIGHUP:
                return 0
            desktop.reset(arguments.seed)
            _explain(desktop)
    print("the desktop has exited", flush=True)
    return INFRASTRUCTURE


def _explain(desktop: ServedDesktop) -> None:
    assert desktop.server is not None
    url, token = desktop.server
    chrome, vlc = desktop.forwarded(CHROME), desktop.forwarded(VLC)
    assert chrome is not None
    assert vlc is not None
    width, height = desktop.screen_size
    print(f"server: {url}")
    print(f"token: {token}" if token else "token: none: every user of this machine can run commands in the desktop")
    print(f"Chrome's debugging port: {chrome[1]} ({CHROME} inside)")
    print(f"VLC's HTTP port: {vlc[1]} ({VLC} inside)")
    print(f"a desktop of {width}×{height} pixels is ready; Ctrl-C ends it", flush=True)
