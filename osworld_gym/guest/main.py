"""The guest's main program: reads its configuration from stdin, starts the X session and the server, serves until EOF.

The owner writes one line of JSON to stdin and keeps stdin open. When it closes, because the owner closed it or exited,
every process of the desktop is ended. The guest writes one line of JSON to stdout: the X display, or the error. From
then on stdin and stdout carry :mod:`~.server.channels`, through which the owner reaches the server and other ports.
"""

from __future__ import annotations

import json
import os
import sys

from .x_server import XServer, keep_descriptors

TYPE_CHECKING = False  # typing takes milliseconds to import, before the X server starts
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .desktop_server import Accept
    from .session import Session

MARKER = "OSWORLD_GYM_DESKTOP"  # of process.processes, which takes milliseconds to import
STARTING = 0.0005  # seconds that a thread waits for another at a start: imports must not delay the window manager
TICK = 1.0  # seconds between two checks for dead children and for the owner


def main() -> int:
    """Runs one desktop; returns the exit status."""
    owner = os.getppid()
    order = json.loads(sys.stdin.buffer.readline())
    keep_descriptors()
    env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    size = (order["width"], order["height"])
    x = XServer(order["folder"], size, env | {MARKER: order["marker"], "HOME": order["home"]})
    return _run(x, order, owner)


def _run(x: XServer, order: dict[str, Any], owner: int) -> int:
    import shutil
    import signal
    from pathlib import Path

    from .process.processes import become_subreaper, deny_tracing
    from .process.program_clock import RATE
    from .session import Session, Starting

    deny_tracing()  # no program of the policy runs yet
    become_subreaper()
    output = _take_output()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        folder, home, runtime = (Path(order[name]) for name in ("folder", "home", "runtime"))
        size = (order["width"], order["height"])
        clock = order.get("office_clock", RATE)
        session = Session(x, folder, home, runtime, size=size, marker=order["marker"], clock=clock)
    except (RuntimeError, ValueError, OSError) as error:
        x.kill()
        _say(output, {"error": str(error)})
        shutil.rmtree(order["folder"], ignore_errors=True)
        return 1
    usual = sys.getswitchinterval()
    try:
        sys.setswitchinterval(STARTING)
        starting = Starting(session)
        from .desktop_server import serve  # takes a third of a start, while X server and window manager start

        starting.wait()
        own, accept = serve(session, order)
        sys.setswitchinterval(usual)
        _say(output, {"display": session.display})
        _watch(session, own, owner, _join_owner(output, accept))
    except (RuntimeError, OSError) as error:
        _say(output, {"error": str(error)})
        return 1
    finally:
        session.close()
        shutil.rmtree(session.folder, ignore_errors=True)
    return 0


def _leave(number: int, _frame: Any) -> None:
    raise SystemExit(128 + number)


def _take_output() -> int:
    """The descriptor of the real stdout; what a library prints goes to stderr from now on."""
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


def _say(output: int, line: dict[str, Any]) -> None:
    try:
        _write(output, json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        return  # the owner is gone, there is no reader


def _write(output: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]


def _join_owner(output: int, accept: Accept) -> int:
    """Starts the channels to the owner; returns a descriptor that is readable when the owner has closed them."""
    import threading

    from .server.channels import Channels, ProtocolError

    ended, end = os.pipe()

    def run() -> None:
        try:
            Channels(sys.stdin.buffer.read, lambda data: _write(output, data), accept).run()
        except ProtocolError as error:
            print(f"the owner: {error}", file=sys.stderr, flush=True)
        os.close(end)

    threading.Thread(target=run, name="owner", daemon=True).start()
    return ended


def _watch(session: Session, own: Callable[[], set[int]], owner: int, ended: int) -> None:
    """Reaps orphans; returns when ``ended`` is readable, the owner is gone, or a program of the session has ended."""
    import select
    import signal

    from .process.processes import descendants, reap

    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([ended, woken], [], [], TICK)
        if ended in ready:
            return
        if woken in ready:
            os.read(woken, 4096)
        if os.getppid() != owner or session.dead():
            return
        tree = descendants(os.getpid())
        dead = {pid for pid, state in tree.items() if state == "Z"}
        reap(dead - own())
