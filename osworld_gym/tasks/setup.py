"""OSWorld's setup steps as a table: step name → what it asks of a desktop. Run before an episode and before scoring.

A provider passes itself as :class:`SetupTarget`. Parameters are checked here, so that a wrong task file is a TaskError
that names the step and the key; what fails inside the desktop is the target's own ``setup_failed``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from osworld_gym.errors import TaskError
from osworld_gym.types import CommandResult

Command = str | Sequence[str]

CLIENT_PASSWORD = "password"  # OSWorld's account inside the desktop
UNTIL_TRIES = 5  # OSWorld's ``until``: tries, and seconds between them
UNTIL_INTERVAL = 0.3

#: steps of OSWorld that need what no desktop of ours offers yet, with the reason
UNSUPPORTED = {
    "download": "it fetches files from the network; put the files beside the task and use upload_file or write_file",
    "googledrive": "it needs a Google account",
    "login": "it needs an account on a web site",
    "chrome_open_tabs": "it needs a Chrome with remote debugging",
    "chrome_close_tabs": "it needs a Chrome with remote debugging",
    "update_browse_history": "it needs a Chrome profile",
    "change_wallpaper": "it needs a GNOME or XFCE session",
}


class SetupTarget(Protocol):
    """What a desktop offers to the setup steps. Seconds; every call ends within the desktop's own deadline."""

    @property
    def screen_size(self) -> tuple[int, int]: ...
    def execute(self, command: Command, *, shell: bool) -> CommandResult:
        """Runs to the end; any exit status is a result."""
        ...

    def launch(self, command: Command, *, shell: bool, window: bool | None) -> None:
        """Starts and does not wait for the end. ``window``: True demands one, None looks for one for a short while."""
        ...

    def open_file(self, path: str) -> None:
        """Opens a file with its application and returns when its window is there."""
        ...

    def activate_window(self, name: str, *, strict: bool, by_class: bool) -> None: ...
    def close_window(self, name: str, *, strict: bool, by_class: bool) -> None: ...
    def write_file(self, path: str, data: bytes) -> None: ...
    def wait_still(self, deadline: float) -> None:
        """Returns when the screen has been still for a while, at the latest after ``deadline`` seconds."""
        ...


class _Parameters:
    """The parameters of one step: taken by name and type; what is left over at the end is an error."""

    def __init__(self, step: str, values: Mapping[str, Any]) -> None:
        self.step = step
        self._left = dict(values)

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any = ...) -> Any:
        if key not in self._left and default is not ...:
            return default
        value = self._left.pop(key, None)
        if not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise TaskError(f"setup step {self.step!r}: parameter {key!r} wants {names}, got {value!r}")
        return value

    def flag(self, key: str) -> bool:
        """OSWorld passes ``shell`` through to Python as it comes, so any non-empty string is true."""
        return bool(self.take(key, (bool, str), False))

    def end(self) -> None:
        if self._left:
            raise TaskError(f"setup step {self.step!r}: unknown parameters: {', '.join(sorted(self._left))}")


def _fill(command: Command, size: tuple[int, int]) -> Command:
    """OSWorld's placeholders in commands: the account's password and the screen's size."""
    width, height = size
    values = {
        "{CLIENT_PASSWORD}": CLIENT_PASSWORD,
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


def _execute(target: SetupTarget, p: _Parameters) -> None:
    command = _fill(p.take("command", (str, list)), target.screen_size)
    shell, until = p.flag("shell"), p.take("until", dict, {})
    p.end()
    for attempt in range(UNTIL_TRIES):
        result = target.execute(command, shell=shell)
        reached = (
            not until
            or until.get("returncode", ...) == result.returncode
            or ("stdout" in until and until["stdout"] in result.output)
            or ("stderr" in until and until["stderr"] in result.error)
        )
        if reached or attempt == UNTIL_TRIES - 1:
            return
        time.sleep(UNTIL_INTERVAL)  # a command is polled: there is no event to wait for


def _launch(target: SetupTarget, p: _Parameters) -> None:
    command, shell, window = p.take("command", (str, list)), p.flag("shell"), p.take("window", bool, None)
    p.end()
    target.launch(_fill(command, target.screen_size), shell=shell, window=window)


def _open(target: SetupTarget, p: _Parameters) -> None:
    path = p.take("path", str)
    p.end()
    target.open_file(path)


def _sleep(target: SetupTarget, p: _Parameters) -> None:
    seconds = p.take("seconds", (int, float, str))
    p.end()
    try:
        deadline = float(seconds)
    except ValueError:
        raise TaskError(f"setup step 'sleep': parameter 'seconds' wants a number, got {seconds!r}") from None
    target.wait_still(deadline)


def _activate_window(target: SetupTarget, p: _Parameters) -> None:
    name, strict, by_class = p.take("window_name", str), p.flag("strict"), p.flag("by_class")
    p.end()
    target.activate_window(name, strict=strict, by_class=by_class)


def _close_window(target: SetupTarget, p: _Parameters) -> None:
    name, strict, by_class = p.take("window_name", str), p.flag("strict"), p.flag("by_class")
    p.end()
    target.close_window(name, strict=strict, by_class=by_class)


def _upload_file(target: SetupTarget, p: _Parameters) -> None:
    files = p.take("files", list)
    p.end()
    for entry in files:
        if not isinstance(entry, Mapping) or not {"local_path", "path"} <= set(entry):
            raise TaskError(f"setup step 'upload_file': a file wants 'local_path' and 'path', got {entry!r}")
        try:
            data = Path(entry["local_path"]).read_bytes()
        except OSError as error:
            raise TaskError(f"setup step 'upload_file': {entry['local_path']}: {error.strerror}") from error
        target.write_file(entry["path"], data)


def _write_file(target: SetupTarget, p: _Parameters) -> None:
    path, content = p.take("path", str), p.take("content", str)
    p.end()
    target.write_file(path, content.encode())


SETUP_STEPS: dict[str, Callable[[SetupTarget, _Parameters], None]] = {
    "launch": _launch,
    "open": _open,
    "execute": _execute,
    "command": _execute,
    "sleep": _sleep,
    "activate_window": _activate_window,
    "close_window": _close_window,
    "upload_file": _upload_file,
    "write_file": _write_file,
}


def run_step(target: SetupTarget, step: Mapping[str, Any]) -> None:
    """Runs one setup step ``{"type": ..., "parameters": {...}}`` on ``target``.

    Raises:
        TaskError: the step is unknown or not supported, or a parameter is missing, unknown or of the wrong type.
        DesktopError: from the target, when the step itself failed.
    """
    name, parameters = step.get("type"), step.get("parameters") or {}
    if name in UNSUPPORTED:
        raise TaskError(f"setup step {name!r} is not supported by this provider: {UNSUPPORTED[name]}")
    if name not in SETUP_STEPS:
        raise TaskError(f"unknown setup step {name!r}; known: {', '.join(SETUP_STEPS)}")
    if not isinstance(parameters, Mapping):
        raise TaskError(f"setup step {name!r}: 'parameters' wants an object, got {parameters!r}")
    SETUP_STEPS[name](target, _Parameters(name, parameters))
