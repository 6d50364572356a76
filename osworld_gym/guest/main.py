"""The guest's main program: reads its configuration from stdin, starts the X session and the server, serves until EOF.

The owner writes one line of JSON to stdin and keeps stdin open. When it closes, because the owner closed it or exited,
every process of the desktop is ended. The guest writes one line of JSON to stdout: the X display, or the error.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from Xlib.display import Display

from .endpoints.observation import DEADLINE, QUIET
from .endpoints.recording import Recording
from .process.commands import Commands
from .process.processes import become_subreaper, descendants, reap, watch_time
from .process.python_forks import STILL_SOCKET
from .process.still_socket import serve_still
from .seeds import apply_seed
from .server import forward
from .server.handlers import endpoints
from .server.web import GuestServer
from .session import READY_DEADLINE, Session
from .x11.inputs import Inputs
from .x11.liveness import XServerLiveness
from .x11.screen import Screen, Workload
from .x11.windows import Windows

TICK = 1.0  # seconds between two checks for dead children and for the owner


def main() -> int:
    """Runs one desktop; returns the exit status."""
    become_subreaper()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    owner = os.getppid()
    order = json.loads(sys.stdin.readline())
    try:
        folder, home, runtime = (Path(order[name]) for name in ("folder", "home", "runtime"))
        session = Session(folder, home, runtime, size=(order["width"], order["height"]), marker=order["marker"])
    except (RuntimeError, OSError) as error:
        _say({"error": str(error)})
        shutil.rmtree(order["folder"], ignore_errors=True)
        return 1
    try:
        own = _serve(session, order)
        _say({"display": session.display})
        _watch(session, own, owner)
    except (RuntimeError, OSError) as error:
        _say({"error": str(error)})
        return 1
    finally:
        session.close()
        shutil.rmtree(session.folder, ignore_errors=True)
    return 0


def _leave(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _say(line: dict[str, Any]) -> None:
    try:
        print(json.dumps(line), flush=True)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  the owner is gone, there is no reader


def _serve(session: Session, order: dict[str, Any]) -> Callable[[], set[int]]:
    """Connects to the X server and starts the HTTP server's thread.

    Returns:
        a function that lists the child processes that their owners wait for, which :func:`_watch` must not reap.
    """
    os.environ |= {"DISPLAY": session.env["DISPLAY"], "XAUTHORITY": session.env["XAUTHORITY"]}
    display, lock = Display(), threading.RLock()
    display.set_error_handler(lambda *_: None)  # requests without a reply fail when their window is gone
    windows = Windows(display, lock)
    recording = Recording(session.env, session.size, session.folder)
    screen = Screen(session.framebuffer, Workload(partial(_programs, session, recording), watch_time), windows.nudge)
    inputs = Inputs(display, lock, screen.size, screen.wait_still)
    _await_manager(windows)
    inputs.move((screen.size[0] / 2, screen.size[1] / 2))
    still = session.folder / "still"
    serve_still(still, partial(screen.wait_still, QUIET, DEADLINE))
    environment = order.get("environment", {}) | {STILL_SOCKET: str(still)}
    commands = Commands(session.env | environment, session.folder / "launched.log")
    listener = socket.socket(fileno=order["socket"])
    table = endpoints(screen, inputs, windows, commands, XServerLiveness(display, lock), recording)
    server = GuestServer(table, order["token"], listener, session.ending)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    if "inner" in order:  # a second listener, without a token, for programs in the desktop's own network
        inner = GuestServer(table, "", socket.create_server(("127.0.0.1", order["inner"])), session.ending)
        threading.Thread(target=inner.serve_forever, args=(0.05,), daemon=True).start()
    forward.start(order.get("forward", {}), order.get("proxy"))
    apply_seed(order["seed"], windows, screen)
    return lambda: session.own() | commands.own() | recording.own()


def _programs(session: Session, recording: Recording) -> list[int]:
    """The processes whose work may change the screen: all but the session's own and the recorder's."""
    ours = session.own() | recording.own() | {os.getpid()}
    return [pid for pid in descendants(os.getpid()) if pid not in ours]


def _await_manager(windows: Windows) -> None:
    end = time.monotonic() + READY_DEADLINE
    while not windows.managed():
        if time.monotonic() > end:
            raise RuntimeError(f"openbox was not ready within {READY_DEADLINE} s")
        time.sleep(0.005)  # polls for the window manager's property on the root window


def _watch(session: Session, own: Callable[[], set[int]], owner: int) -> None:
    """Reaps orphans; returns when stdin is closed, the owner is gone, or a program of the session has ended."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([sys.stdin, woken], [], [], TICK)
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
            return
        if woken in ready:
            os.read(woken, 4096)
        if os.getppid() != owner or session.dead():
            return
        tree = descendants(os.getpid())
        dead = {pid for pid, state in tree.items() if state == "Z"}
        reap(dead - own())
