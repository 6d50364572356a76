"""One X session: X server, and when it is ready the message bus and the window manager."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .home import make_home
from .process.processes import MARKER, end_tree
from .process.program_clock import office_clock
from .shims import set_up
from .x_server import XServer, cookie_entry, write_private

#: program → Debian package
PROGRAMS = {"Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus-daemon"}
READY_DEADLINE = 20.0  # seconds for each program to be ready
CLOSED_PIPE = 1.0  # seconds for a program that closed its pipe to end
ACCESSIBILITY = ("/usr/libexec/at-spi-bus-launcher", "--launch-immediately", "--a11y=1")
TIME_ZONE = "Asia/Hong_Kong"  #: not UTC, because a task of OSWorld asks to set UTC; has no daylight saving time
_OPTIONAL = "at-spi"  # the session goes on without it
_FAMILY_LOCAL = 256  #: address family of an Xauthority entry: its address is a host name

#: a session bus that starts the services of shims.SERVICES only
_BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>{address}</listen>
  <auth>EXTERNAL</auth>
  <servicedir>{services}</servicedir>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


def accessibility(full: bool) -> dict[str, str]:
    """Environment variables that make GTK, Qt and Mozilla programs publish their widgets through AT-SPI.

    On in the ``full`` desktop only: it delays the start of a program by up to 0.1 s, of GTK 2 programs by 0.5 s.
    """
    if not full:
        return {"NO_AT_BRIDGE": "1", "GTK_A11Y": "none"}
    return {"QT_ACCESSIBILITY": "1", "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1", "GNOME_ACCESSIBILITY": "1"}


class Session:
    """Xvfb with its own display number and cookie, D-Bus, openbox; all children of this process.

    The constructor does not wait for the X server; :meth:`await_ready` does, and starts the rest.

    Args:
        x: the X server, which may still be starting.
        folder: the desktop's private folder, for the framebuffer, cookie, shims and logs.
        home: HOME. If missing or empty, the bare HOME is written; else it is a template's and is used as it is.
        runtime: XDG_RUNTIME_DIR, missing or empty.
        size: (width, height) of the screen in pixels.
        marker: the value of the marker variable in the environment of every process.
        clock: how many times as fast as time LibreOffice's clock runs.

    Raises:
        RuntimeError: a program is missing.
    """

    def __init__(
        self,
        x: XServer,
        folder: Path,
        home: Path,
        runtime: Path,
        size: tuple[int, int],
        marker: str,
        clock: float,
    ) -> None:
        missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
        if missing:
            raise RuntimeError(f"missing Debian packages; fix: apt-get update && apt-get install {' '.join(missing)}")
        self.folder, self.size, self._x = folder, size, x
        self.home = home
        self.full = home.is_dir() and any(home.iterdir())  # a template's HOME, the full desktop
        if not self.full:
            make_home(home)
        self.framebuffer = folder / "Xvfb_screen0"
        #: openbox makes this file when it has grabbed its keys; the root window's properties come before that
        self.manager_ready = folder / "openbox-ready"
        for path in (folder, runtime):
            path.mkdir(mode=0o700, exist_ok=True)
        self.env = self._environment(marker, runtime) | office_clock(clock)
        self._children: dict[str, subprocess.Popen[bytes] | XServer] = {"Xvfb": x}
        self._closing = False
        self.display = -1

    def await_ready(self) -> None:
        """Waits until the X server is ready, starts the message bus and the window manager, and waits for the bus.

        Raises:
            RuntimeError: a program ended early, or was not ready in time; :meth:`close` ends the others.
        """
        self.display = self._read_number("Xvfb", self._x.pipe)
        # python-xlib requires the entry by host name and number, libxcb takes either
        name, number = socket.gethostname().encode(), str(self.display).encode()
        write_private(self.env["XAUTHORITY"], cookie_entry(self._x.cookie, _FAMILY_LOCAL, name, number))
        self.env["DISPLAY"] = f":{self.display}"
        bus_pipe = self._start_bus()  # not before: programs that the bus starts get its environment, with DISPLAY
        manager = ["openbox", "--sm-disable", "--config-file", f"{self.home}/.config/openbox/rc.xml"]
        self._spawn("openbox", [*manager, "--startup", f"touch {shlex.quote(str(self.manager_ready))}"])
        self._read_number("dbus-daemon", bus_pipe)
        if self.full and Path(ACCESSIBILITY[0]).exists():
            self._spawn(_OPTIONAL, ACCESSIBILITY)

    def _environment(self, marker: str, runtime: Path) -> dict[str, str]:
        """The environment of every process in the desktop; only PATH and PYTHONPATH come from the guest's own."""
        inherited = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        return inherited | {
            MARKER: marker,
            "HOME": str(self.home),
            "USER": "user",
            "LOGNAME": "user",
            "SHELL": "/bin/bash",
            **set_up(self.folder, os.environ["PATH"]),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "TZ": TIME_ZONE,
            "XAUTHORITY": self._x.authority,
            "XDG_RUNTIME_DIR": str(runtime),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            "XDG_DATA_HOME": str(self.home / ".local/share"),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus",
            "XENVIRONMENT": str(self.home / ".Xresources"),
            "GSETTINGS_BACKEND": "keyfile",
            "GTK_USE_PORTAL": "0",
            "GVFS_DISABLE_FUSE": "1",
            "GIO_USE_VFS": "local",
            "GIO_USE_VOLUME_MONITOR": "unix",
            "GSK_RENDERER": "cairo",
            "SAL_USE_VCLPLUGIN": "gtk3",
            **accessibility(self.full),
        }

    def _spawn(self, name: str, command: Sequence[str], pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        if self._closing:
            raise RuntimeError(f"{name} was not started: the desktop is closing")
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        self._children[name] = child
        return child

    def _start_bus(self) -> int:
        """Returns the pipe to which it writes its process id."""
        config = self.folder / "bus.conf"
        config.write_text(_BUS.format(address=self.env["DBUS_SESSION_BUS_ADDRESS"], services=self.folder / "services"))
        read, write = os.pipe()
        options = [f"--config-file={config}", "--nofork", "--nopidfile", f"--print-pid={write}"]
        self._spawn("dbus-daemon", ["dbus-daemon", *options], pass_fds=(write,))
        os.close(write)
        return read

    def _read_number(self, name: str, pipe: int) -> int:
        """Reads the number that a program writes to its pipe when it is ready, and closes the pipe."""
        text, end = b"", time.monotonic() + READY_DEADLINE
        try:
            while not text.endswith(b"\n"):
                ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
                if not ready:
                    problem = f"was not ready within {READY_DEADLINE:g} s"
                    raise RuntimeError(f"{name} {problem}; its log: {self._log_tail(name)}")
                part = os.read(pipe, 64)
                if not part:
                    raise RuntimeError(f"{name} {self._how_it_ended(name)}; its log: {self._log_tail(name)}")
                text += part
        finally:
            os.close(pipe)
        return int(text)

    def _how_it_ended(self, name: str) -> str:
        """How a program that closed its pipe without a number ended, as text for the error."""
        try:
            status = self._children[name].wait(CLOSED_PIPE)
        except subprocess.TimeoutExpired:
            return "closed its pipe before it was ready"
        return f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"

    def _log_tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-300:].strip() or "nothing"

    def dead(self) -> Mapping[str, int]:
        """The session's programs that have ended, with their exit status."""
        polled = {name: child.poll() for name, child in self._children.items() if name != _OPTIONAL}
        return {name: status for name, status in polled.items() if status is not None}

    def ending(self) -> bool:
        """Whether :meth:`close` was called, or must be, because a program of the session has ended."""
        return self._closing or bool(self.dead())

    def own(self) -> set[int]:
        """Process ids of the children that this object waits for."""
        return {child.pid for child in self._children.values()}

    def close(self) -> None:
        """Ends every process of the desktop; the X server removes its own lock and socket."""
        self._closing = True
        end_tree(os.getpid(), gentle=[self._x.pid] if self._x.poll() is None else [])
        if self.display >= 0 and self._x.poll() not in (0, -signal.SIGTERM):
            for path in (f"/tmp/.X{self.display}-lock", f"/tmp/.X11-unix/X{self.display}"):
                Path(path).unlink(missing_ok=True)


class Starting:
    """Waits for a session to be ready in a thread, while this one imports what the desktop requires later.

    Args:
        session: its X server is starting.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._session.await_ready()
        except (RuntimeError, OSError) as error:
            self._error = error

    def wait(self) -> None:
        """Returns when the session is ready; its programs have deadlines. Raises what ``await_ready`` raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
