"""What each endpoint does: OSWorld's, with their request and answer forms, and ours. No HTTP here.

OSWorld's forms: a text command without shell is split like a shell line, a list's items that start with ``~/`` expand,
a non-zero exit status is still a success, window steps always succeed.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .commands import Commands
from .inputs import Inputs
from .screen import Screen
from .seeds import apply_seed
from .windows import Window, Windows

EXECUTE_TIMEOUT = 120.0  # seconds, as in OSWorld's server
OPEN_TIMEOUT = 60.0  # seconds for a file's window; OSWorld waits 1800
LAUNCH_TIMEOUT = 20.0  # seconds for the window of a program that was said to have one
LAUNCH_LOOK = 3.0  # seconds in which a launched program may show a window when nothing was said
QUIET = 0.1  # seconds without a change that make a screen still
DEADLINE = 5.0  # seconds until a restless screen is taken as it is
KEYS_KEPT = 512


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body and content type of one HTTP answer."""

    body: bytes
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(json.dumps(value).encode(), status)


def as_text(text: str) -> Answer:
    return Answer(text.encode(), kind="text/html; charset=utf-8")


class BadRequest(Exception):
    """The request is wrong; the message goes back with status 400."""


class Handlers:
    """The endpoints over one desktop. Called from many threads."""

    def __init__(self, screen: Screen, inputs: Inputs, windows: Windows, commands: Commands) -> None:
        self.screen, self.inputs, self.windows, self.commands = screen, inputs, windows, commands
        self._acting = threading.Lock()
        self._done: OrderedDict[str, dict[str, Any]] = OrderedDict()

    # --- ours -----------------------------------------------------------------------------------------------------

    def health(self) -> Answer:
        width, height = self.screen.size
        return as_json({"status": "ok", "width": width, "height": height, "changes": self.screen.changes})

    def observe(self, body: Mapping[str, Any]) -> Answer:
        """PNG of the screen when it is still: ``quiet`` and ``deadline`` in seconds."""
        still = self.screen.wait_still(_number(body, "quiet", QUIET), _number(body, "deadline", DEADLINE))
        headers = {"X-Still": str(int(still)), "X-Changes": str(self.screen.changes)}
        return Answer(self.screen.png(), kind="image/png", headers=headers)

    def actions(self, body: Mapping[str, Any]) -> Answer:
        """Performs ``actions`` in order, then waits until the screen is still. A ``key`` seen before acts no more."""
        actions, key = body.get("actions"), str(body.get("key", ""))
        if not isinstance(actions, list) or not all(isinstance(action, dict) for action in actions):
            raise BadRequest(f"'actions' wants a list of objects, got {actions!r}")
        with self._acting:
            if key and key in self._done:
                return as_json(self._done[key] | {"repeated": True})
            done: dict[str, Any] = {"performed": 0}
            if key:
                self._done[key] = done
                if len(self._done) > KEYS_KEPT:
                    self._done.popitem(last=False)
            for action in actions:
                try:
                    self.inputs.perform(action)
                except ValueError as error:
                    raise BadRequest(str(error)) from error
                done["performed"] += 1
                if len(actions) > 1:
                    self.screen.wait_still(QUIET / 2, 1.0)
            quiet, deadline = _number(body, "quiet", QUIET), _number(body, "deadline", DEADLINE)
            done["still"] = self.screen.wait_still(quiet, deadline)
            return as_json(done | {"repeated": False})

    def seed(self, body: Mapping[str, Any]) -> Answer:
        """A desktop that was started ahead of need gets its episode's ``seed``."""
        seed = body.get("seed")
        if not isinstance(seed, int):
            raise BadRequest(f"'seed' wants an integer, got {seed!r}")
        apply_seed(seed, self.windows, self.screen)
        return as_json({"seed": seed})

    def window_list(self) -> Answer:
        return as_json({"windows": [window.to_json() for window in self.windows.all()]})

    # --- OSWorld's ------------------------------------------------------------------------------------------------

    def screenshot(self) -> Answer:
        return Answer(self.screen.png(), kind="image/png")

    def screen_size(self) -> Answer:
        width, height = self.screen.size
        return as_json({"width": width, "height": height})

    def platform(self) -> Answer:
        return as_text("Linux")

    def cursor_position(self) -> Answer:
        return as_json(list(self.inputs.pointer()))

    def terminal(self) -> Answer:
        """OSWorld reads a GNOME terminal by its accessibility tree; there is none here, and its probe wants a 200."""
        return as_json({"output": None, "status": "success"})

    def execute(self, body: Mapping[str, Any]) -> Answer:
        command, shell = _command(body), bool(body.get("shell", False))
        try:
            status, out, err = self.commands.execute(command, shell, _number(body, "timeout", EXECUTE_TIMEOUT))
        except TimeoutError as error:
            return as_json({"status": "error", "message": str(error), "timed_out": True}, 500)
        except (OSError, ValueError) as error:
            return as_json({"status": "error", "message": str(error)}, 500)
        return as_json({"status": "success", "output": out, "error": err, "returncode": status})

    def launch(self, body: Mapping[str, Any]) -> Answer:
        """Starts a program. Ours: ``window`` true demands its window, false does not look, null looks for a while."""
        command, window = _command(body), body.get("window", False)
        before = {seen.id for seen in self.windows.all()}
        try:
            child = self.commands.launch(command, bool(body.get("shell", False)))
        except (OSError, ValueError) as error:
            return as_json({"status": "error", "message": str(error)}, 500)
        if window is not False:
            deadline = _number(body, "deadline", LAUNCH_TIMEOUT if window else LAUNCH_LOOK)
            found = self._new_window(before, child, deadline)
            if window and not found:
                return as_json({"status": "error", "message": f"{command!r} showed no window in {deadline} s"}, 500)
            self.screen.wait_still(QUIET, DEADLINE)
        name = command if isinstance(command, str) else " ".join(map(str, command))
        return as_text(f"{name} launched successfully")

    def _new_window(self, before: set[int], child: subprocess.Popen[bytes], deadline: float) -> bool:
        """Waits for a window that was not there; ends early when the program failed."""
        failed = False

        def found(windows: list[Window]) -> bool:
            nonlocal failed
            failed = child.poll() not in (None, 0)
            return failed or any(window.id not in before for window in windows)

        return self.windows.wait(found, deadline) and not failed

    def open_file(self, body: Mapping[str, Any]) -> Answer:
        """Opens a file with its application, or starts a program of that name; returns when its window is there."""
        text = _text(body, "path")
        path, before = self.commands.expand(text), self.windows.all()
        opener = ["gio", "open", str(path)] if path.exists() else [text]
        try:
            self.commands.launch(opener, shell=False)
        except FileNotFoundError as error:
            return as_json({"status": "error", "message": f"no file {text!r}; {error}"}, 404)
        names = [path.name.lower(), path.stem.lower()]
        old = {(window.id, window.title) for window in before}

        def there(windows: list[Window]) -> bool:
            new = [window for window in windows if (window.id, window.title) not in old]
            return any(name in window.title.lower() for window in new for name in names)

        deadline = _number(body, "deadline", OPEN_TIMEOUT)
        if not self.windows.wait(there, deadline):
            return as_json({"status": "error", "message": f"{text!r} showed no window in {deadline} s"}, 500)
        self.screen.wait_still(QUIET, DEADLINE)
        return as_text("File opened successfully")

    def activate_window(self, body: Mapping[str, Any]) -> Answer:
        if (window := self._find(body)) is not None:
            self.windows.activate(window)
            self.windows.wait(lambda now: any(w.id == window.id and w.active for w in now), 2.0)
            self.screen.wait_still(QUIET, DEADLINE)
        return as_text("Window activated successfully")

    def close_window(self, body: Mapping[str, Any]) -> Answer:
        if (window := self._find(body)) is not None:
            self.windows.close(window)
            self.windows.wait(lambda now: all(w.id != window.id for w in now), 2.0)
            self.screen.wait_still(QUIET, DEADLINE)
        return as_text("Window closed successfully")

    def _find(self, body: Mapping[str, Any]) -> Window | None:
        name, strict, by_class = _text(body, "window_name"), bool(body.get("strict")), bool(body.get("by_class"))
        return self.windows.find(name, strict=strict, by_class=by_class)

    def file(self, form: Mapping[str, Any]) -> Answer:
        path = self.commands.expand(_text(form, "file_path"))
        try:
            return Answer(path.read_bytes(), kind="application/octet-stream")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return as_json({"error": f"File not found: {path}"}, 404)
        except OSError as error:
            return as_json({"error": f"{path}: {error.strerror}"}, 500)

    def upload(self, form: Mapping[str, Any]) -> Answer:
        """Writes ``file_data`` at ``file_path``, whole or not at all, making its folders."""
        path, data = self.commands.expand(_text(form, "file_path")), form.get("file_data")
        if not isinstance(data, bytes):
            raise BadRequest("'file_data' is missing")
        try:
            _write_whole(path, data)
        except OSError as error:
            return as_json({"status": "error", "message": f"{path}: {error.strerror}"}, 500)
        return as_text(f"File Uploaded: {len(data)} bytes")


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{time.monotonic_ns()}")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def _command(body: Mapping[str, Any]) -> str | list[str]:
    command = body.get("command", [])
    if isinstance(command, str) or (isinstance(command, list) and all(isinstance(part, str) for part in command)):
        return command
    raise BadRequest(f"'command' wants text or a list of texts, got {command!r}")


def _text(body: Mapping[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{key!r} wants text, got {value!r}")
    return value


def _number(body: Mapping[str, Any], key: str, default: float) -> float:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadRequest(f"{key!r} wants a number of seconds, got {value!r}")
    return float(value)
