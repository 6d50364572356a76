"""A Python with pyautogui's dependencies preloaded that forks for each ``python -c``. A separate program: see ``BOOT``.

OSWorld's client sends every action as ``python -c "import pyautogui; ..."``; a fresh interpreter spends most of its
time in that import. Here the forked child finds Xlib, Pillow and the rest loaded. It imports only pyautogui itself
again, to open its own X connection: a connection must not be shared across forks.

Protocol, on a Unix SOCK_SEQPACKET socket: each message carries five descriptors: the request (JSON ``{"code",
"arguments", "folder"}``), the child's stdin, stdout and stderr, and a pipe for the reply. The reply has three lines:
that the request was accepted, the child's process id, and its exit status (negative: ended by that signal). Without
the first line nothing was run. The program ends when its socket is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from types import ModuleType, TracebackType
from typing import Any

#: ``python -c BOOT <this file> <descriptor of the socket>``: with ``-c``, to keep the guest's folder off sys.path
BOOT = (
    "import importlib.util, sys; spec = importlib.util.spec_from_file_location('osworld_preload_server', sys.argv[1]); "
    "forks = importlib.util.module_from_spec(spec); sys.modules[spec.name] = forks; spec.loader.exec_module(forks); "
    "forks.main(int(sys.argv[2]))"
)
DESCRIPTORS = 5  # of each request
PR_SET_DUMPABLE = 4  # of prctl(2)
TAKEN = b"+"  # the first line
STILL_SOCKET = "OSWORLD_GYM_STILL"  #: environment variable: the Unix socket that closes when the screen is still
STILL_PATIENCE = 8.0  # seconds for it to close; the guest itself waits up to five
REFUSED = b"!"  # starts the second and then last line, if the child could not be forked


def preload() -> None:
    """Imports pyautogui's dependencies and closes its X connection. Without pyautogui, nothing is preloaded."""
    try:
        import pyautogui
    except (Exception, SystemExit) as error:  # noqa: BLE001  without display or tkinter; the children report it too
        print(f"preload_server: nothing preloaded: {error!r}", file=sys.stderr)
    else:
        pyautogui.platformModule._display.close()
    for name in [name for name in sys.modules if name.split(".")[0] == "pyautogui"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()  # the collector no longer touches the loaded objects, so their memory stays shared with the children


class Children:
    """The running children, each with the pipe for its reply."""

    def __init__(self) -> None:
        self._pipes: dict[int, int] = {}

    def add(self, pid: int, pipe: int) -> None:
        self._pipes[pid] = pipe
        self._tell(pipe, b"%d\n" % pid)

    def collect(self) -> None:
        """Reaps the children that have ended and reports their exit status."""
        while self._pipes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            pipe = self._pipes.pop(pid)
            self._tell(pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
            os.close(pipe)

    def _tell(self, pipe: int, line: bytes) -> None:
        try:
            os.write(pipe, line)
        except BrokenPipeError:
            print(f"preload_server: no reader for the reply {line!r}", file=sys.stderr)


def serve(control: socket.socket) -> dict[str, Any]:
    """Forks for each request. Returns only in the children, with the request; the parent exits in here."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children, sources = Children(), [control.fileno(), woken]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if woken in ready:
            os.read(woken, 4096)
            children.collect()
        if control.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, DESCRIPTORS)
        if not message:
            raise SystemExit(0)
        os.write(descriptors[-1], TAKEN + b"\n")
        try:
            pid = os.fork()
        except OSError as error:
            os.write(descriptors[-1], REFUSED + f"{error}\n".encode())
            pid = -1
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.detach()
            return become(descriptors)
        for descriptor in descriptors[: -1 if pid > 0 else None]:
            os.close(descriptor)
        if pid > 0:
            children.add(pid, descriptors[-1])


def become(descriptors: list[int]) -> dict[str, Any]:
    """Makes the forked child like a fresh ``python -c``: own session, the given streams, no other open descriptor."""
    os.setsid()
    with os.fdopen(descriptors[0], "rb") as file:
        request = json.loads(file.read())
    for number, descriptor in enumerate(descriptors[1:4]):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    set_dumpable(True)
    os.chdir(request["folder"])
    importlib.invalidate_caches()
    return dict(request)


def set_dumpable(on: bool) -> None:
    """Whether other processes of this user may trace this one and copy its descriptors, as they may by default."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(on), 0, 0, 0)


def sleep_until_still(names: dict[str, Any]) -> None:
    """Makes ``time.sleep`` of a program that uses pyautogui wait for a still screen as well.

    OSWorld's evaluators press keys, sleep a fixed time and read the saved file: on a loaded machine the sleep is too
    short, and a correct solution scores 0. Only sleeps called by the program itself wait (``names`` are its globals);
    pyautogui's own pauses do not.
    """
    plain = time.sleep

    def sleep(seconds: Any) -> None:
        plain(seconds)
        if sys._getframe(1).f_globals is names and "pyautogui" in sys.modules and STILL_SOCKET in os.environ:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as still:
                still.settimeout(STILL_PATIENCE)
                still.connect(os.environ[STILL_SOCKET])
                still.recv(1)

    time.sleep = sleep


def main(control: int) -> None:
    set_dumpable(False)  # it holds the replies of other programs
    preload()
    request = serve(socket.socket(fileno=control))
    sys.argv = ["-c", *request["arguments"]]
    user = ModuleType("__main__")
    vars(user).update({"__builtins__": sys.modules["builtins"], "__annotations__": {}})
    ours, sys.modules["__main__"] = sys.modules["__main__"], user
    user_names = user.__dict__
    sleep_until_still(user_names)

    def user_frames_only(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Prints an exception as ``python -c`` does: the traceback starts in the user's code."""
        assert ours  # keeps the names of the outer program alive until the end
        while trace is not None and trace.tb_frame.f_globals is not user_names:
            trace = trace.tb_next
        sys.__excepthook__(kind, error.with_traceback(trace), trace)

    sys.excepthook = user_frames_only
    exec(compile(request["code"], "<string>", "exec"), user_names)  # noqa: S102  # as ``python -c`` inside the guest
