"""Provider ``local``: a real X desktop on this machine: own processes, HOME, display, network. No docker, no root.

Each reset is a new guest (``osworld_gym/guest``) in a new sandbox (``sandbox.py``). The owner holds its stdin: when
that ends, because the desktop was closed or its owner died, everything inside ends.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import osworld_gym.guest
from osworld_gym.desktops import sandbox
from osworld_gym.desktops.guest_client import GuestClient
from osworld_gym.desktops.guest_desktop import GuestDesktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.processes import end_marked

#: program that the desktop itself needs → Debian package
PROGRAMS = {"bwrap": "bubblewrap", "Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus-daemon"}
MODULES = ("Xlib", "PIL", "six")  # Python modules that the guest needs
READY = 30.0  # seconds for a new desktop to be ready
GOODBYE = 5.0  # seconds for an old one to be gone
GUEST = Path(osworld_gym.guest.__file__).parent


class LocalDesktop(GuestDesktop):
    """Xvfb, openbox and real applications, in a bubblewrap sandbox.

    Args:
        width, height: the screen in pixels.
        apps: commands started on every reset, each with its window awaited; a task's own setup comes after.
        isolated: False runs without the sandbox, for machines that bar user namespaces: what a policy does then
            happens to this machine, with this user's rights, ``/tmp`` is shared, and paths and screens differ.

    Raises:
        DesktopError: ``never_ready`` when this machine lacks a program or a module; the message names the command
            that installs it.
        ValueError: the screen is smaller than 64 or larger than 8192 pixels.
    """

    def __init__(
        self, width: int = 1280, height: int = 720, apps: Sequence[str | Sequence[str]] = (), isolated: bool = True
    ) -> None:
        if not (64 <= width <= 8192 and 64 <= height <= 8192):
            raise ValueError(f"width and height want 64 to 8192 pixels, got {width}×{height}")
        super().__init__(width, height)
        self._apps, self._isolated = tuple(apps), isolated
        self._guest_process: GuestProcess | None = None
        missing = missing_requirements(isolated)
        if missing:
            raise DesktopError(FailureReason.never_ready, missing)

    def reset(self, seed: int) -> None:
        self.close()
        self._guest_process = GuestProcess(self._isolated)
        width, height = self.screen_size
        order = {"width": width, "height": height, "seed": seed, "token": secrets.token_hex(16)}
        try:
            port = self._guest_process.start(order)
        except DesktopError:
            self.close()
            raise
        self._client = GuestClient("127.0.0.1", port, str(order["token"]))
        self._unsettled = False
        for command in self._apps:
            self.launch(command, shell=False, window=True)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._guest_process is not None:
            self._guest_process.end()
            self._guest_process = None


class GuestProcess:
    """One guest on this machine, from start to end."""

    def __init__(self, isolated: bool) -> None:
        self._isolated = isolated
        self._marker = secrets.token_hex(8)
        self._folder = None if isolated else Path(tempfile.mkdtemp(prefix="osworld-gym-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._inside: int | None = None  # the guest's process id as this machine sees it, when it is not _process
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()

    def start(self, order: dict[str, Any]) -> int:
        """Starts it and waits until it is ready; returns its port on 127.0.0.1.

        Raises:
            DesktopError: ``never_ready``, with what the guest or bubblewrap said.
        """
        places = {"folder": sandbox.FOLDER, "home": sandbox.HOME, "runtime": sandbox.RUNTIME}
        if self._folder is not None:
            places = {"folder": f"{self._folder}", "home": f"{self._folder}/home", "runtime": f"{self._folder}/runtime"}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            # the guest inherits the socket: no race for the port, and it serves the host from its own network
            port = int(listener.getsockname()[1])
            self._spawn(listener.fileno())
            self._order(order | places | {"marker": self._marker, "socket": listener.fileno()})
        self._await_ready()
        return port

    def _spawn(self, listener: int) -> None:
        env = {"PATH": f"{sys.prefix}/bin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}
        if not self._isolated:
            self._process = self._popen([sys.executable, str(GUEST)], (listener,), env)
            return
        read, write = os.pipe()
        command = [sys.executable, sandbox.GUEST]
        box = sandbox.sandbox(command, GUEST, env, write, MODULES)
        try:
            self._process = self._popen(box.command, (listener, *box.descriptors), env)
        finally:
            box.close()
        with os.fdopen(read, "rb") as info:
            told = info.read()
        self._inside = json.loads(told)["child-pid"] if told else None

    def _popen(
        self, command: Sequence[str], descriptors: Sequence[int], env: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            pass_fds=descriptors,
            env=env,
            start_new_session=True,
        )

    def _order(self, order: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # it ended at once; its log says why

    def _await_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], READY)
        if not ready:
            raise DesktopError(FailureReason.never_ready, f"the desktop was not ready within {READY:.0f} s")
        line = self._process.stdout.readline()
        error = json.loads(line).get("error") if line else self._said()
        if error:
            raise DesktopError(FailureReason.never_ready, error)

    def _said(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        said = lines[-1] if lines else ""
        if said.startswith("bwrap:"):
            return f"{said}; mend: allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), or isolated=False"
        return said or "the guest ended without a word"

    def end(self) -> None:
        """Lets go of the guest's stdin, which ends the desktop; a guest that stays is killed. Never raises."""
        if self._process is not None:
            _close_pipes(self._process)
            try:
                self._process.wait(GOODBYE)
            except subprocess.TimeoutExpired:
                self._kill(self._process)
            if not self._isolated:
                end_marked(self._marker)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._log.close()

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kills process 1 inside, and with it all the others; then bubblewrap, or the bare guest."""
        if self._inside is not None:
            try:
                os.kill(self._inside, signal.SIGKILL)
            except ProcessLookupError:
                self._inside = None
        process.kill()
        process.wait()


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what a dead guest did not read


def missing_requirements(isolated: bool = True) -> str:
    """What this machine lacks for a local desktop, as one line with its mend; empty when nothing."""
    wanted = {program: package for program, package in PROGRAMS.items() if isolated or program != "bwrap"}
    packages = [package for program, package in wanted.items() if shutil.which(program) is None]
    if packages:
        return f"the local desktop lacks programs; mend: apt-get install -y {' '.join(packages)}"
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if modules:
        return f"the local desktop lacks Python modules ({', '.join(modules)}); mend: pip install 'osworld-gym[guest]'"
    return ""
