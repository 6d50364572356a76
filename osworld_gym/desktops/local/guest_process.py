"""One guest process on this machine, from start to end: its configuration, its links to guest and keeper."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import osworld_gym.guest
from osworld_gym.desktops.local import sandbox
from osworld_gym.desktops.local.guest_link import LINE, GuestLink
from osworld_gym.desktops.local.keeper.launch import FIRST_DESCRIPTOR, Plan
from osworld_gym.desktops.local.keeper.records import owner_folder
from osworld_gym.desktops.local.keeper_client import Link, keeper
from osworld_gym.desktops.local.sandbox import Home
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import FORWARDED, SERVER
from osworld_gym.guest.process.processes import MARKER
from osworld_gym.guest.server.channels import Stream
from osworld_gym.guest.server.forward import shut, to_address

READY = 60.0  # seconds for a new desktop to be ready
KEEPER_CHECK = 3.0  # seconds of silence after which the keeper is pinged
GOODBYE = 8.0  # seconds for an old desktop to exit
GUEST = Path(osworld_gym.guest.__file__).parent
MODULES = ("Xlib", "PIL", "six")  # Python modules that the guest requires
PASSING = 5.0  # seconds for a ready guest to pass its socket for the proxy
PROXY = 3128  # port inside that is forwarded to a proxy of this machine


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits of one desktop.

    Args:
        memory: MiB of memory of all its processes; above it the desktop is ended (``died``).
        disk: MiB of each of HOME, ``/tmp`` and ``/dev/shm``, which are in memory too.
        processes: number of processes and threads.

    Raises:
        ValueError: a limit is too small for a desktop, or no integer.
    """

    memory: int = 4096
    disk: int = 1024
    processes: int = 2048

    def __post_init__(self) -> None:
        for name, least in (("memory", 128), ("disk", 16), ("processes", 64)):
            given = getattr(self, name)
            if not isinstance(given, int) or given < least:
                raise ValueError(f"{name}: expected at least {least}, an integer, got {given!r}")


@dataclass(frozen=True, slots=True)
class Setting:
    """How the guests of one desktop are started.

    Args:
        isolated: whether to run in a sandbox.
        template: the folder with the initial content of HOME; None: the guest's bare HOME.
        home: ``overlay``, ``copy``, or ``auto``: an overlay if this machine supports it.
        limits: limits of the desktop; without a sandbox only ``memory`` applies.
        proxy: (host, port) of an HTTP proxy for the desktop; None: no network.
        port: port of the guest server on 127.0.0.1; 0: a free one.
    """

    isolated: bool = True
    template: Path | None = None
    home: Literal["auto", "overlay", "copy"] = "auto"
    limits: Limits = Limits()
    proxy: tuple[str, int] | None = None
    port: int = 0


class GuestProcess:
    """A guest process: started by :meth:`start`, ended by :meth:`end` or when this process or its keeper ends."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._marker = secrets.token_hex(8)
        self._link: Link | None = None
        self._guest: GuestLink | None = None
        self._log = -1  # its stderr, a pipe; output that does not fit is lost, so it uses no more memory
        self._proxy: socket.socket | None = None  # the guest's listening socket for the proxy, shared with it
        self._starting = threading.Lock()  # held while start() runs
        self._given_up = self.ended = False
        self.inside: int | None = None  #: the guest's process id on this machine
        self.port = 0  #: port of the guest server on 127.0.0.1
        self.forwarded: dict[int, int] = {}  #: port inside → port on 127.0.0.1

    def start(self, order: dict[str, object]) -> None:
        """Starts the guest and waits until it is ready.

        Args:
            order: the guest's configuration; paths, sockets and the marker are added here.

        Raises:
            DesktopError: ``never_ready``, with the error of the guest or of bubblewrap.
        """
        with self._starting:
            if self._given_up:
                raise DesktopError(FailureReason.never_ready, "closed before it started")
            self._start(order, monotonic() + READY)

    def _start(self, order: dict[str, object], until: float) -> None:
        with ExitStack() as stack:
            listening = stack.enter_context(ExitStack())
            ports = self._listeners(listening)
            ours, theirs = (None, None) if self._setting.proxy is None else socket.socketpair()
            with ExitStack() as handed:  # descriptors that only the guest may keep open, so that its exit is noticed
                passed = []
                if ours is not None and theirs is not None:
                    stack.enter_context(ours)
                    passed = [handed.enter_context(theirs).fileno()]
                self._link = self._spawn(handed, passed, _framebuffer(order))
            assert self._guest is not None
            if not self._given_up:  # else end() was called before there was a link
                self.inside = self._await_started(self._link, until)
            if self._given_up or self._link.ended:
                raise DesktopError(FailureReason.never_ready, self._said())
            self._guest.tell(order | self._places())
            self._await_ready(self._guest, until)
            if self._given_up:  # a bare desktop may become ready during the time it has to clean up
                raise DesktopError(FailureReason.never_ready, "closed before it was ready")
            if ours is not None and self._setting.proxy is not None:
                self._proxy = _join_proxy(ours, self._setting.proxy)
            self._guest.connect(ports)
            listening.pop_all()  # they are closed with the link

    def _listeners(self, stack: ExitStack) -> dict[int, socket.socket]:
        """Port inside → listening socket on 127.0.0.1, whose connections are carried to it."""
        wanted = (SERVER, *FORWARDED) if self._setting.isolated else (SERVER,)
        sockets = {port: stack.enter_context(listen(self._setting.port if port == SERVER else 0)) for port in wanted}
        numbers = {port: int(listener.getsockname()[1]) for port, listener in sockets.items()}
        self.port = numbers.pop(SERVER)
        self.forwarded = numbers
        return sockets

    def dial(self) -> Stream:
        """A connection to the guest's server, without TCP. Raises ConnectionError if the guest has ended."""
        if self._guest is None:
            raise ConnectionResetError("the guest was not started")
        return self._guest.dial(SERVER)

    def _await_started(self, link: Link, until: float) -> int | None:
        """Process id of the sandbox's process 1; None if the desktop ended first. Also notices a stopped keeper."""
        while not link.ended and (left := until - monotonic()) > 0:
            if (pid := link.started(min(left, KEEPER_CHECK))) is not None:
                return pid
            if not link.ended:
                keeper()
        return None

    def _places(self) -> dict[str, Any]:
        """The guest's configuration of paths, marker, environment and proxy."""
        if self._setting.isolated:
            places = {"folder": sandbox.FOLDER, "home": sandbox.HOME, "runtime": sandbox.RUNTIME, "inner": SERVER}
        else:
            folder = self._folder()
            places = {"folder": str(folder), "home": str(folder / "home"), "runtime": str(folder / "runtime")}
        return places | {"marker": self._marker} | self._proxy_order()

    def _proxy_order(self) -> dict[str, Any]:
        if self._setting.proxy is None:
            return {}
        url = f"http://127.0.0.1:{PROXY}"
        names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
        environment = dict.fromkeys(names, url) | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1")
        return {"environment": environment, "proxy": {"channel": FIRST_DESCRIPTOR, "port": PROXY}}

    def _folder(self) -> Path:
        """The folder of a bare desktop; the keeper creates and removes it."""
        return owner_folder(os.getpid()) / self._marker

    def _spawn(self, stack: ExitStack, passed: list[int], framebuffer: int) -> Link:
        read, stdin = os.pipe()
        stdout, write = os.pipe()
        self._guest = GuestLink(stdin, stdout)
        stack.callback(os.close, read)
        stack.callback(os.close, write)
        self._log, log = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, log)
        standard = [read, write, log]
        env = {"PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        limits = self._setting.limits
        common: dict[str, Any] = {"env": env, "marker": self._marker, "memory": limits.memory << 20}
        common |= {"processes": limits.processes, "disk": limits.disk << 20, "file_size": limits.disk << 20}
        if not self._setting.isolated:
            plan = Plan([sys.executable, str(GUEST)], isolated=False, folder=str(self._folder()), **common)
            return keeper().start(plan, [*standard, *passed])
        compile_once(GUEST, MODULES)
        home = _home(self._setting)
        first = FIRST_DESCRIPTOR + len(passed)
        command = [sys.executable, sandbox.GUEST]
        sizes = {"disk": limits.disk << 20, "processes": limits.processes, "framebuffer": framebuffer}
        box = sandbox.sandbox(command, GUEST, env, MODULES, home=home, **sizes, first=first)
        stack.callback(box.close)
        common |= {"template": str(home.template), "home": home.method} if home.prepared else {}
        common["env"] = env | {MARKER: self._marker}  # for bubblewrap; the sandbox sets the environment inside
        plan = Plan(list(box.command), isolated=True, sources=list(box.sources), **common)
        return keeper().start(plan, [*standard, *passed, *box.descriptors])

    def _await_ready(self, guest: GuestLink, until: float) -> None:
        try:
            line = guest.hear(until)
        except TimeoutError:
            raise DesktopError(FailureReason.never_ready, f"the desktop was not ready within {READY:.0f} s") from None
        if not line.endswith(b"\n"):
            raise DesktopError(FailureReason.never_ready, self._said())
        try:
            error = dict(json.loads(line)).get("error")
        except ValueError:
            error = f"expected a JSON object from the guest, got {line[:100]!r}"
        if error:
            raise DesktopError(FailureReason.never_ready, str(error))

    def _said(self) -> str:
        try:
            text = os.read(self._log, LINE).decode("utf-8", "replace")
        except BlockingIOError:
            text = ""
        lines = text.strip().splitlines()
        said = lines[-1] if lines else ""
        if said.startswith("bwrap:"):
            return f"{said}; fix: allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or isolated=False"
        return said or self.why(1.0) or "the guest ended without a word"

    def why(self, timeout: float) -> str:
        """Why the keeper ended it; empty if it is running or exited by itself. Waits ``timeout`` s for its end."""
        if self._link is not None and not self._link.ended:
            self._link.hear(timeout)
        return "" if self._link is None else self._link.why

    @property
    def running(self) -> bool:
        """Whether it is running, as far as the keeper has reported."""
        self.why(0.0)
        return self._link is not None and not self._link.ended

    def end(self) -> None:
        """Ends the desktop and all of its processes. Never raises; may be called twice, from any thread."""
        self._given_up = True
        if self._link is not None:
            self._link.release()  # start() stops waiting when the desktop ends
        with self._starting:
            if self.ended:
                return
            self.ended = True
            if self._guest is not None:
                self._guest.close()
            if self._log >= 0:
                os.close(self._log)
            if self._proxy is not None:
                shut(self._proxy)
            if self._link is not None:
                self._link.end(GOODBYE)


def _join_proxy(channel: socket.socket, proxy: tuple[str, int]) -> socket.socket:
    """Receives the guest's listening socket and forwards its connections to the proxy in this machine's network."""
    channel.settimeout(PASSING)
    try:
        _, descriptors, _, _ = socket.recv_fds(channel, 16, 1)
    except TimeoutError:
        descriptors = []
    if not descriptors:
        raise DesktopError(FailureReason.never_ready, "the guest passed no socket for the proxy")
    listener = socket.socket(fileno=descriptors[0])
    listener.settimeout(None)
    to_address(listener, proxy)
    return listener


def listen(port: int) -> socket.socket:
    """A listening socket on 127.0.0.1. Raises DesktopError (``never_ready``) if the port is in use."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError as error:
        message = f"port {port} of 127.0.0.1: {error.strerror}; fix: another port, or 0 for a free one"
        raise DesktopError(FailureReason.never_ready, message) from error


def _framebuffer(order: dict[str, object]) -> int:
    """Bytes of the pixels of the screen in a guest's configuration."""
    width, height = order["width"], order["height"]
    assert isinstance(width, int)
    assert isinstance(height, int)
    return 4 * width * height


def _home(setting: Setting) -> Home:
    """How HOME is created on this machine. Raises DesktopError if an overlay is required but not possible."""
    if setting.template is None:
        return Home()
    if setting.home != "copy":
        why = _why_no_overlay(keeper().pid, setting.template)
        if not why:
            return Home(setting.template, "overlay")
        if setting.home == "overlay":
            raise DesktopError(FailureReason.never_ready, f"no overlay over the template: {why}; fix: home='copy'")
    return Home(setting.template, "staged" if os.geteuid() == 0 else "copy")


@cache
def _why_no_overlay(_keeper: int, template: Path) -> str:
    return keeper().why_no_overlay(template)


@cache
def compile_once(guest: Path, modules: Sequence[str]) -> None:
    """Compiles the guest's folder and its packages if that is missing or old; without it every reset would.

    Inside a sandbox they are read-only, so a guest cannot write their bytecode.

    An editable installation, or one by uv, has no bytecode of modules that this machine never imported. A folder
    that this user may not write is left as it is.

    Args:
        guest: the folder of the guest's own modules.
        modules: names of the packages that it imports; a missing one is ignored.
    """
    for folder in (guest, *filter(None, map(_folder, modules))):
        compileall.compile_dir(folder, quiet=2)


def _folder(module: str) -> Path | None:
    """The folder of a package; None for a module of one file, or a missing one."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        return None
    return Path(spec.origin).parent
