"""Provider ``local``: a real X desktop on this machine with separate processes, HOME, display and network.

Requires neither Docker nor root. Each reset starts a new guest (``osworld_gym/guest``) in a new sandbox
(``sandbox.py``). This process's keeper (``keeper/``) starts and supervises it: when the desktop is closed or its owner
ends, everything inside ends.
"""

from __future__ import annotations

import importlib.util
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from osworld_gym.desktops.guest_server.http_client import GuestClient, Reply
from osworld_gym.desktops.guest_server.prepared_desktop import MEMORY, PreparedDesktop
from osworld_gym.desktops.home_template.find import find_template
from osworld_gym.desktops.local.admission import ADMISSION
from osworld_gym.desktops.local.guest_process import MODULES, GuestProcess, Limits, Setting
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import SERVER
from osworld_gym.guest.process.program_clock import RATE

#: program that the desktop requires → Debian package
PROGRAMS = {"bwrap": "bubblewrap", "Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus-daemon"}
BROKEN = 503  # HTTP status with which the guest reports that its X server does not answer
VERDICT = 5.0  # seconds for the keeper to report why it ended a desktop: gigabytes take a while to free under load


class LocalDesktop(PreparedDesktop):
    """Xvfb, openbox and real applications, in a bubblewrap sandbox.

    Args:
        width: screen width in pixels.
        height: screen height in pixels.
        apps: commands started on every reset, before the task's setup; each one's window is awaited.
        isolated: False runs without the sandbox, for machines that do not allow user namespaces: the policy's actions
            then affect this machine, with this user's rights, ``/tmp`` is shared, and paths and screens differ. No
            ports are forwarded, HOME is the bare one, and ``memory`` is the only limit that applies.
        template: the folder with the initial content of HOME; ``auto``: the installed template, if there is one
            (``osworld-gym install-desktop``); None: a bare HOME.
        home: how HOME is created from the template: ``overlay``, ``copy``, or ``auto``: an overlay if possible.
        memory: limit of its processes' total memory in MiB; above it the desktop is ended.
        disk: size limit in MiB of each of HOME, ``/tmp`` and ``/dev/shm``, which are in this machine's memory.
        processes: limit of its processes and threads.
        proxy: ``host:port`` of an HTTP proxy that this machine can reach; inside it is at ``127.0.0.1:3128``, and
            ``http_proxy`` is set to it. None: no network.
        office_clock: how many times as fast as time LibreOffice's clock runs, so that its frames come sooner; 1: as the
            machine's (docs/desktop.md).

    Raises:
        DesktopError: ``never_ready``: this machine lacks a program or a module; the message has the command that
            installs it.
        ValueError: the screen is smaller than 64 or larger than 8192 pixels, a limit is too small, the clock's rate is
            not 1 to 10, or ``apps``, ``template`` or ``proxy`` is invalid.
    """

    def __init__(
        self,
        width: int = 1280,
        height: int = 720,
        apps: Sequence[str | Sequence[str]] = (),
        isolated: bool = True,
        template: str | Path | None = "auto",
        home: Literal["auto", "overlay", "copy"] = "auto",
        memory: int = 4096,
        disk: int = 1024,
        processes: int = 2048,
        proxy: str | None = None,
        office_clock: float = RATE,
    ) -> None:
        if not isinstance(isolated, bool):
            raise ValueError(f"isolated: expected True or False, got {isolated!r}")
        if home not in ("auto", "overlay", "copy"):
            raise ValueError(f"home: expected auto, overlay or copy, got {home!r}")
        super().__init__(width, height, apps, office_clock)
        self._guest_process: GuestProcess | None = None
        limits, way_out = Limits(memory, disk, processes), _proxy(proxy, isolated)
        missing = missing_requirements(isolated)
        if missing:
            raise DesktopError(FailureReason.never_ready, missing)
        self._setting = Setting(isolated, _template(template, isolated), home, limits, way_out)

    def _turn(self) -> AbstractContextManager[None]:
        return ADMISSION.start(MEMORY)

    def _start(self, order: dict[str, object]) -> GuestClient:
        process = self._guest_process = GuestProcess(self._setting)
        try:
            process.start(order)
            if process.ended:
                raise DesktopError(FailureReason.never_ready, "closed while it started")
        except DesktopError:
            process.end()
            self._guest_process = None
            raise
        return LocalClient(process, self._token)

    def _let_go(self) -> Callable[[], None]:
        process, self._guest_process = self._guest_process, None
        if process is None:
            return lambda: None
        if self._setting.port:  # the next desktop needs the same port
            process.end()
            return lambda: None
        ending = threading.Thread(target=process.end, name="ending")
        ending.start()
        return ending.join

    def forwarded(self, port: int) -> tuple[str, int] | None:
        process = self._guest_process
        if process is None:
            return None
        here = process.port if port == SERVER else process.forwarded.get(port)
        return None if here is None else ("127.0.0.1", here)


class LocalClient(GuestClient):
    """A guest client that raises with the keeper's reason if the keeper has ended the desktop."""

    def __init__(self, process: GuestProcess, token: str) -> None:
        super().__init__("127.0.0.1", process.port, token, process.dial)
        self._process = process

    def _ask(self, *arguments: Any, **named: Any) -> Reply:
        try:
            reply = super()._ask(*arguments, **named)
        except DesktopError as error:
            if error.reason is FailureReason.died and (why := self._process.why(VERDICT)):
                raise DesktopError(FailureReason.died, why) from error
            raise
        if reply.status == BROKEN and (why := self._process.why(VERDICT)):
            raise DesktopError(FailureReason.died, why)
        return reply


def _template(wanted: str | Path | None, isolated: bool) -> Path | None:
    if wanted is None or (wanted == "auto" and not isolated):
        return None
    if not isolated:
        raise ValueError(
            "template requires the sandbox: with isolated=False HOME is always the bare one; fix: template=None"
        )
    if wanted == "auto":
        template = find_template()
        return None if template is None else template.path
    path = Path(wanted).resolve()
    if not path.is_dir():
        raise ValueError(f"template: expected a folder, got {wanted}; fix: osworld-gym install-desktop")
    return path


def _proxy(wanted: str | None, isolated: bool) -> tuple[str, int] | None:
    if wanted is None:
        return None
    if not isolated:
        raise ValueError(
            "proxy requires the sandbox: with isolated=False the desktop has the machine's network; fix: proxy=None"
        )
    host, _, port = wanted.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"proxy: expected host:port, as 127.0.0.1:3128, got {wanted!r}")
    return host, int(port)


def missing_requirements(isolated: bool = True) -> str:
    """One line with what this machine lacks for a local desktop and how to install it; empty if nothing is missing."""
    wanted = {program: package for program, package in PROGRAMS.items() if isolated or program != "bwrap"}
    packages = [package for program, package in wanted.items() if shutil.which(program) is None]
    if packages:
        return f"the local desktop lacks programs; fix: apt-get update && apt-get install -y {' '.join(packages)}"
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if modules:
        return f"the local desktop lacks Python modules ({', '.join(modules)}); fix: pip install 'osworld-gym[guest]'"
    return ""
