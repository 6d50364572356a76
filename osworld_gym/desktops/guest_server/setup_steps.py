"""Setup steps that run inside the desktop, as a table: step name → function that runs it through the guest.

A provider passes itself as :class:`SetupTarget`. A wrong step raises a TaskError with the step and the key; a failure
inside the desktop is the target's ``setup_failed``. Steps that also involve this machine (downloads, Chrome's tabs) are
in ``tasks/setup/run.py``, which every episode uses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from osworld_gym.desktops.setup_schema import check_step
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.types import CommandResult

Command = str | Sequence[str]

UNTIL_DEADLINE = 30.0  # seconds for the ``until`` condition of a command to become true (OSWorld: no limit)
UNTIL_INTERVAL = 0.3  # seconds between two attempts


class Filling(Protocol):
    """The values of the placeholders of a command."""

    client_password: str

    @property
    def screen_size(self) -> tuple[int, int]: ...


class SetupTarget(Filling, Protocol):
    """The methods of a desktop that setup steps require. Every call returns within the desktop's deadline."""

    def execute(self, command: Command, *, shell: bool) -> CommandResult:
        """Runs a command to its end; a non-zero exit status is a result, not an error."""
        ...

    def launch(self, command: Command, *, shell: bool, window: bool | None) -> None:
        """Starts a program. ``window``: True requires its window, None waits for one briefly, False does not wait."""
        ...

    def open_file(self, path: str) -> None:
        """Opens a file with its application and waits for its window."""
        ...

    def activate_window(self, name: str, *, strict: bool, by_class: bool) -> None: ...
    def close_window(self, name: str, *, strict: bool, by_class: bool) -> None: ...
    def write_file(self, path: str, data: bytes) -> None: ...
    def wait_still(self, deadline: float) -> None:
        """Waits until the screen has been still for a while, at most ``deadline`` seconds."""
        ...


Parameters = Mapping[str, Any]


def fill(command: Command, desktop: Filling) -> Command:
    """Replaces OSWorld's placeholders in a command: the account's password, and parts of the screen in pixels."""
    width, height = desktop.screen_size
    values = {
        "{CLIENT_PASSWORD}": desktop.client_password,
        "{SCREEN_WIDTH_HALF}": str(width // 2),
        "{SCREEN_HEIGHT_HALF}": str(height // 2),
        "{SCREEN_WIDTH}": str(width),
        "{SCREEN_HEIGHT}": str(height),
    }

    def one(text: str) -> str:
        for name, value in values.items():
            text = text.replace(name, value)
        return text

    return one(command) if isinstance(command, str) else [one(str(part)) for part in command]


def _execute(target: SetupTarget, p: Parameters) -> None:
    command, until = fill(p["command"], target), p.get("until") or {}
    end = time.monotonic() + UNTIL_DEADLINE
    while True:
        result = target.execute(command, shell=bool(p.get("shell")))
        if not until or reached(until, result):
            return
        if time.monotonic() >= end:
            message = f"{command!r} did not reach {until!r} within {UNTIL_DEADLINE:g} s; its last status: {result}"
            raise DesktopError(FailureReason.setup_failed, message)
        time.sleep(UNTIL_INTERVAL)  # a command is polled: there is no event to wait for


def reached(until: Mapping[str, Any], result: CommandResult) -> bool:
    """Whether a command's result meets any of the conditions in OSWorld's ``until``."""
    return (
        until.get("returncode", ...) == result.returncode
        or ("stdout" in until and until["stdout"] in result.output)
        or ("stderr" in until and until["stderr"] in result.error)
    )


def _launch(target: SetupTarget, p: Parameters) -> None:
    command = fill(p["command"], target)
    target.launch(command, shell=bool(p.get("shell")), window=p.get("window"))


def _open(target: SetupTarget, p: Parameters) -> None:
    target.open_file(p["path"])


def seconds_of(p: Parameters) -> float:
    """The ``seconds`` of a ``sleep`` step. Raises TaskError if it is not a number of at least 0."""
    try:
        seconds = float(p["seconds"])
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise TaskError(f"setup step 'sleep': parameter 'seconds' must be a number >= 0, got {p['seconds']!r}")
    return seconds


def _sleep(target: SetupTarget, p: Parameters) -> None:
    target.wait_still(seconds_of(p))


def _activate_window(target: SetupTarget, p: Parameters) -> None:
    target.activate_window(p["window_name"], strict=bool(p.get("strict")), by_class=bool(p.get("by_class")))


def _close_window(target: SetupTarget, p: Parameters) -> None:
    target.close_window(p["window_name"], strict=bool(p.get("strict")), by_class=bool(p.get("by_class")))


def _upload_file(target: SetupTarget, p: Parameters) -> None:
    for entry in p["files"]:
        try:
            data = Path(entry["local_path"]).expanduser().read_bytes()
        except OSError as error:
            raise TaskError(f"setup step 'upload_file': {entry['local_path']}: {error.strerror}") from error
        target.write_file(entry["path"], data)


def _write_file(target: SetupTarget, p: Parameters) -> None:
    target.write_file(p["path"], p["content"].encode())


def _change_wallpaper(target: SetupTarget, p: Parameters) -> None:
    """Sets GNOME's setting as OSWorld's server does; evaluators read it, even if no program shows the wallpaper."""
    key = ["org.gnome.desktop.background", "picture-uri"]
    result = target.execute(["gsettings", "set", *key, f"file://{p['path']}"], shell=False)
    if result.returncode:
        raise DesktopError(FailureReason.setup_failed, f"change_wallpaper: {result.error.strip() or result.output}")


SETUP_STEPS: dict[str, Callable[[SetupTarget, Parameters], None]] = {
    "launch": _launch,
    "open": _open,
    "execute": _execute,
    "command": _execute,
    "sleep": _sleep,
    "activate_window": _activate_window,
    "close_window": _close_window,
    "upload_file": _upload_file,
    "write_file": _write_file,
    "change_wallpaper": _change_wallpaper,
}


def run_step(target: SetupTarget, step: Mapping[str, Any]) -> None:
    """Runs one setup step ``{"type": ..., "parameters": {...}}`` on ``target``.

    Raises:
        TaskError: the step is unknown, or a parameter is missing, unknown or of the wrong type.
        DesktopError: from the target: the step itself failed.
    """
    name = step.get("type")
    if name not in SETUP_STEPS:
        raise TaskError(f"unknown setup step {name!r}; known: {', '.join(SETUP_STEPS)}")
    check_step(step, "setup")
    SETUP_STEPS[name](target, step.get("parameters") or {})
