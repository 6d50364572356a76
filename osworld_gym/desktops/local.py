"""Provider ``local``: a real X desktop on this machine, in its own process tree, HOME and display. No docker, no root.

Each reset is a new guest: new folder, new HOME, new X server. What keeps one desktop's processes together and ends
them is the guest's hold on stdin (see ``osworld_gym/guest/main.py``) and the marker in every environment; what shuts
them off from the machine (a sandbox) belongs in :func:`guest_command`.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import osworld_gym.guest
from osworld_gym.desktops.guest_client import GuestClient
from osworld_gym.desktops.guest_desktop import GuestDesktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.processes import end_marked

#: program that the desktop itself needs → Debian package
PROGRAMS = {"Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus-daemon"}
MODULES = ("Xlib", "PIL")  # Python modules that the guest needs
READY = 30.0  # seconds for a new desktop to be ready
GOODBYE = 5.0  # seconds for an old one to be gone


class LocalDesktop(GuestDesktop):
    """Xvfb, openbox and real applications.

    Args:
        width, height: the screen in pixels.
        apps: commands started on every reset, each with its window awaited; a task's own setup comes after.

    Raises:
        DesktopError: ``never_ready`` when this machine lacks a program or a module; the message names the command
            that installs it.
        ValueError: the screen is smaller than 64 or larger than 8192 pixels.
    """

    def __init__(self, width: int = 1280, height: int = 720, apps: Sequence[str | Sequence[str]] = ()) -> None:
        if not (64 <= width <= 8192 and 64 <= height <= 8192):
            raise ValueError(f"width and height want 64 to 8192 pixels, got {width}×{height}")
        super().__init__(width, height)
        self._apps = tuple(apps)
        self._process: subprocess.Popen[bytes] | None = None
        self._marker = ""
        self._folder: Path | None = None
        missing = missing_requirements()
        if missing:
            raise DesktopError(FailureReason.never_ready, missing)

    def reset(self, seed: int) -> None:
        self.close()
        self._marker = secrets.token_hex(8)
        self._folder = Path(tempfile.mkdtemp(prefix="osworld-gym-"))
        token = secrets.token_hex(16)
        width, height = self.screen_size
        order = {"folder": str(self._folder), "width": width, "height": height, "marker": self._marker}
        try:
            answer = self._start(order | {"token": token, "seed": seed})
        except DesktopError:
            self.close()
            raise
        self._client = GuestClient("127.0.0.1", answer["port"], token)
        self._unsettled = False
        for command in self._apps:
            self.launch(command, shell=False, window=True)

    def _start(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._folder is not None
        with (self._folder / "guest.log").open("wb") as log:
            self._process = subprocess.Popen(
                guest_command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended at once; its log says why, below
        line = self._read_line(self._process)
        answer = json.loads(line) if line else {"error": self._log() or "no answer"}
        if "error" in answer:
            raise DesktopError(FailureReason.never_ready, answer["error"])
        return answer

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        end = time.monotonic() + READY
        ready, _, _ = select.select([process.stdout], [], [], READY)
        if not ready:
            raise DesktopError(FailureReason.never_ready, f"no desktop within {time.monotonic() - end + READY:.0f} s")
        return process.stdout.readline()

    def _log(self) -> str:
        assert self._folder is not None
        log = self._folder / "guest.log"
        return log.read_text(errors="replace")[-500:].strip() if log.exists() else ""

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is not None:
            _let_go(process)
            end_marked(self._marker)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """Closes the owner's end of the guest's stdin, which ends the desktop; a guest that stays is killed."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # what was not read by a dead guest
    try:
        process.wait(GOODBYE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def guest_command() -> list[str]:
    """The command that starts a guest: this interpreter on the guest's folder. A sandbox would wrap it here."""
    folder = Path(osworld_gym.guest.__file__).parent
    return [sys.executable, str(folder)]


def missing_requirements() -> str:
    """What this machine lacks for a local desktop, as one line with its mend; empty when nothing."""
    packages = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if packages:
        return f"the local desktop lacks programs; mend: apt-get install -y {' '.join(packages)}"
    modules = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if modules:
        return f"the local desktop lacks Python modules ({', '.join(modules)}); mend: pip install 'osworld-gym[guest]'"
    return ""
