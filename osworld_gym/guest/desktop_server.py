"""Connects to the X session and starts the servers of a desktop: its HTTP endpoints, and the socket of stillness."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from Xlib.display import Display

from .endpoints.accessibility import Accessibility
from .endpoints.files import Files
from .endpoints.observation import DEADLINE, QUIET, Observing
from .endpoints.opening import Opening
from .endpoints.recording import Recording
from .endpoints.running import Running
from .endpoints.wallpaper import Wallpaper
from .ports import SERVER
from .process.commands import Commands
from .process.preload_server import STILL_SOCKET
from .process.processes import descendants, watch_time
from .process.reaction import Reaction
from .server import forward
from .server.answers import Table
from .server.channels import Stream
from .server.web import GuestServer
from .session import READY_DEADLINE, Session
from .x11.inputs import Inputs
from .x11.liveness import XServerLiveness
from .x11.screen import Screen, Workload
from .x11.windows import Windows

MANY = 8  # simultaneous connections that wait for a still screen; further ones wait for one of them to end
#: handles a connection of the owner, which it opened to a port
Accept = Callable[[Stream, int], None]


def serve(session: Session, order: dict[str, Any]) -> tuple[Callable[[], set[int]], Accept]:
    """Connects to the X server and starts the HTTP servers.

    Args:
        session: the X session, which must be ready.
        order: the guest's configuration.

    Returns:
        a function that lists the child processes that their owners wait for, which nobody else must reap; and the
        function that handles the owner's connections.
    """
    os.environ |= {"DISPLAY": session.env["DISPLAY"], "XAUTHORITY": session.env["XAUTHORITY"]}
    vars(platform.uname())["processor"] = ""  # Xlib reads the whole record, for which platform would run a program
    display, lock = Display(), threading.RLock()
    display.set_error_handler(lambda *_: None)  # requests without a reply fail when their window is gone
    windows = Windows(display, lock)
    recording = Recording(session.env, session.size, session.folder)
    still = session.folder / "still"
    environment = order.get("environment", {}) | {STILL_SOCKET: str(still)}
    commands = Commands(session.env | environment, session.folder / "launched.log")
    programs = partial(_programs, session, recording, commands)
    reaction = partial(Reaction, programs, session.own)
    screen = Screen(session.framebuffer, Workload(programs, watch_time), windows.nudge, reaction)
    inputs = Inputs(display, lock, screen.size, screen.wait_still)
    serve_still(still, partial(screen.wait_still, QUIET, DEADLINE))
    table = endpoints(screen, inputs, windows, commands, XServerLiveness(Display()), recording)
    Image.preinit()  # imports what the first screenshot needs
    _await_manager(session)
    inputs.move((screen.size[0] / 2, screen.size[1] / 2))
    server = GuestServer(table, order["token"], session.ending)
    if "socket" in order:  # of a container
        server.listen(socket.socket(fileno=order["socket"]))
    if "inner" in order:  # without a token, for programs in the desktop's own network
        GuestServer(table, "", session.ending).listen(socket.create_server(("127.0.0.1", order["inner"])))
    if "proxy" in order:
        forward.pass_proxy(order["proxy"])
    windows.apply_seed(order["seed"])
    return lambda: session.own() | commands.own() | recording.own(), partial(_accept, server)


def _accept(server: GuestServer, stream: Stream, port: int) -> None:
    if port == SERVER:
        return server.serve(stream)
    with socket.create_connection(("127.0.0.1", port), forward.CONNECT) as local:
        local.settimeout(None)
        local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        forward.join(local, stream)


def _programs(session: Session, recording: Recording, commands: Commands) -> list[int]:
    """The processes whose work may change the screen: all but the session's own, the recorder, the forking Python."""
    ours = session.own() | recording.own() | commands.forking() | {os.getpid()}
    return [pid for pid in descendants(os.getpid()) if pid not in ours]


def _await_manager(session: Session) -> None:
    end = time.monotonic() + READY_DEADLINE
    while not session.manager_ready.exists():
        if time.monotonic() > end:
            raise RuntimeError(f"openbox was not ready within {READY_DEADLINE} s")
        time.sleep(0.002)  # polls for the file


def serve_still(path: Path, wait_still: Callable[[], object]) -> None:
    """Closes each connection to a Unix socket when the screen is still, in threads, until the process ends.

    Args:
        path: path of the socket; removed with the desktop's private folder.
        wait_still: returns when the screen is still, or at its own deadline.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    threading.Thread(target=_answer_when_still, args=(listener, wait_still), name="still", daemon=True).start()


def _answer_when_still(listener: socket.socket, wait_still: Callable[[], object]) -> None:
    slots = threading.Semaphore(MANY)

    def answer(connection: socket.socket) -> None:
        with connection:
            wait_still()
        slots.release()

    with listener:
        while True:
            slots.acquire()
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection,), daemon=True).start()


def endpoints(
    screen: Screen,
    inputs: Inputs,
    windows: Windows,
    commands: Commands,
    liveness: XServerLiveness,
    recording: Recording,
) -> Table:
    """The table of every endpoint of one desktop. The handlers are called from many threads."""
    groups = (
        Observing(screen, inputs, windows, liveness),
        Running(screen, windows, commands),
        Opening(screen, windows, commands),
        Files(commands),
        Wallpaper(commands, windows, screen.size),
        Accessibility(commands, windows),
        recording,
    )
    table: Table = {}
    for group in groups:
        table |= group.routes()
    return table
