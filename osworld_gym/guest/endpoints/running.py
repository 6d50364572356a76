"""Endpoints that run programs: OSWorld's execute, launch, run_python and run_bash_script."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..process.commands import Commands, is_desktops
from ..process.processes import any_running, descendants
from ..server.answers import (
    NO_RESULT,
    Answer,
    BadRequest,
    Table,
    as_json,
    as_text,
    command_of,
    failed,
    flag_of,
    path_of,
    seconds_of,
    text_of,
)
from ..x11.screen import Screen
from ..x11.windows import Window, Windows
from .observation import DEADLINE, PAINTED, QUIET

EXECUTE_TIMEOUT = 120.0  # seconds, as in OSWorld's server
PYTHON_TIMEOUT = 30.0  # the same
SCRIPT_TIMEOUT = 100.0  # the same
VERIFY_WAIT, VERIFY_INTERVAL = 10.0, 1.0  # the same
VERIFY_COMMAND = 5.0  # the same
LAUNCH_TIMEOUT = 20.0  # seconds for the window, if the request requires one
LAUNCH_LOOK = 3.0  # seconds for the window, if the request does not state whether there is one
LOOK = 0.05  # seconds between two checks of the program's processes
IDLE = 0.3  # seconds of idling without a connection to the X server after which a program is assumed to have no window


class Running:
    """``/execute``, ``/setup/launch``, ``/run_python``, ``/run_bash_script`` and their variants."""

    def __init__(self, screen: Screen, windows: Windows, commands: Commands) -> None:
        self._screen, self._windows, self._commands = screen, windows, commands

    def routes(self) -> Table:
        both = {"/execute": self.execute, "/execute_with_verification": self.execute_with_verification}
        table: Table = {("POST", prefix + path): answer for path, answer in both.items() for prefix in ("", "/setup")}
        return table | {
            ("POST", "/setup/launch"): self.launch,
            ("POST", "/run_python"): self.run_python,
            ("POST", "/run_bash_script"): self.run_bash_script,
        }

    def _execute(self, body: Mapping[str, Any]) -> dict[str, Any] | Answer:
        """OSWorld's reply for a command that ran, whatever its exit status; or the failure to run it.

        A desktop that cannot run any command has a status of its own: an evaluator must not take it for empty output.
        """
        command, shell = command_of(body), flag_of(body, "shell")
        try:
            status, out, err = self._commands.execute(command, shell, seconds_of(body, "timeout", EXECUTE_TIMEOUT))
        except TimeoutError as error:
            return as_json({"status": "error", "message": str(error), "timed_out": True}, 500)
        except (OSError, ValueError) as error:
            return failed(str(error), NO_RESULT if is_desktops(error) else 500)
        return {"status": "success", "output": out, "error": err, "returncode": status}

    def execute(self, body: Mapping[str, Any]) -> Answer:
        said = self._execute(body)
        return said if isinstance(said, Answer) else as_json(said)

    def execute_with_verification(self, body: Mapping[str, Any]) -> Answer:
        """Runs the command, then waits for a window title (``window_exists``) and a command (``command_success``)."""
        wanted = body.get("verification") or {}
        if not isinstance(wanted, dict):
            raise BadRequest(f"'verification': expected an object, got {wanted!r}")
        wait, interval = (
            seconds_of(body, "max_wait_time", VERIFY_WAIT),
            seconds_of(body, "check_interval", VERIFY_INTERVAL),
        )
        said = self._execute(body)
        if isinstance(said, Answer):
            return said
        if not wanted:
            return as_json(said)
        start = time.monotonic()
        if self._verified(wanted, start + wait, interval):
            return as_json(said | {"verification": "passed", "wait_time": time.monotonic() - start})
        return as_json(said | {"status": "verification_failed", "verification": "failed", "wait_time": wait}, 500)

    def _verified(self, wanted: Mapping[str, Any], end: float, interval: float) -> bool:
        title = str(wanted.get("window_exists", "")).lower()
        command = command_of(wanted, "command_success")

        def there(now: list[Window]) -> bool:
            return not title or any(title in window.title.lower() for window in now)

        while self._windows.wait(there, max(0.0, end - time.monotonic())):
            if not command or self._succeeds(command):
                return True
            if time.monotonic() + interval > end:
                return False
            time.sleep(interval)  # the interval of the request: the command has to be polled
        return False

    def _succeeds(self, command: str | list[str]) -> bool:
        try:
            return self._commands.execute(command, True, VERIFY_COMMAND)[0] == 0
        except (TimeoutError, OSError, ValueError):
            return False

    def launch(self, body: Mapping[str, Any]) -> Answer:
        """Starts a program. Our field ``window``: true requires a window, false does not wait, null waits briefly."""
        command, window, shell = command_of(body), body.get("window", False), flag_of(body, "shell")
        launching = Launching(self._windows, self._commands.launched())
        try:
            child = self._commands.launch(command, shell)
        except (OSError, ValueError) as error:
            return failed(str(error))
        if window is not False:
            deadline = seconds_of(body, "deadline", LAUNCH_TIMEOUT if window else LAUNCH_LOOK)
            opened = launching.window(child, deadline, demanded=bool(window))
            if window and opened is None:
                return failed(f"{command!r} showed no window in {deadline} s")
            if opened is not None:
                self._screen.wait_painted(opened.box, PAINTED)
            self._screen.wait_still(QUIET, DEADLINE)
        name = command if isinstance(command, str) or shell else " ".join(command)
        return as_text(f"{name} launched successfully")

    def run_python(self, body: Mapping[str, Any]) -> Answer:
        """Runs ``code`` as a script, for at most ``timeout`` seconds (default 30)."""
        code, timeout = text_of(body, "code"), seconds_of(body, "timeout", PYTHON_TIMEOUT)
        said: dict[str, Any] = {"need_more": False, "output": None}
        try:
            status, out, err = self._script(code, ".py", "python3", timeout)
        except TimeoutError:
            late = {"status": "error", "message": "Execution timeout: Code took too long to execute"}
            return as_json(late | said | {"error": "TimeoutExpired"}, 500)
        except OSError as error:
            return as_json(
                {"status": "error", "message": f"Execution error: {error}"} | said | {"error": str(error)}, 500
            )
        err = err or ("" if status == 0 else f"Process exited with code {status}")
        said |= {"output": out, "error": err, "return_code": status}
        message = "\n".join(part for part in (out, err) if part)
        return as_json({"status": "error" if status else "success", "message": message} | said)

    def run_bash_script(self, body: Mapping[str, Any]) -> Answer:
        """Runs ``script`` with bash in ``working_dir``, for at most ``timeout`` seconds; stderr goes to stdout."""
        script, timeout = body.get("script"), seconds_of(body, "timeout", SCRIPT_TIMEOUT)
        if not isinstance(script, str) or not script:
            return _script_failed("Script not supplied!", 400)
        place = body.get("working_dir")
        folder = self._commands.expand(path_of(body, "working_dir")) if place else self._commands.home
        if not folder.is_dir():
            return _script_failed(f"Working directory does not exist: {folder}", 400)
        text = script if "#!/bin/bash" in script else f"#!/bin/bash\n\n{script}"
        try:
            status, out, _ = self._script(text, ".sh", "/bin/bash", timeout, folder, merged=True)
        except TimeoutError:
            return _script_failed(f"Script execution timed out after {timeout:g} seconds", 500)
        except OSError as error:
            return _script_failed(f"Failed to execute script: {error}", 500)
        return as_json({"status": "error" if status else "success", "output": out, "error": "", "returncode": status})

    def _script(
        self, text: str, suffix: str, program: str, timeout: float, folder: Path | None = None, merged: bool = False
    ) -> tuple[int, str, str]:
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BadRequest(f"expected text of whole characters, got {text[error.start]!r} in it") from error
        handle, path = tempfile.mkstemp(suffix)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            return self._commands.execute([program, path], False, timeout, folder, merged)
        finally:
            Path(path).unlink(missing_ok=True)


def _script_failed(output: str, status: int) -> Answer:
    return as_json({"status": "error", "output": output, "error": "", "returncode": -1}, status)


class Launching:
    """Waits for the first window of one program.

    Create it before the program is started: it records the windows that exist at that time.

    Args:
        windows: the windows of the desktop.
        others: process ids of programs started before; their new windows are not this program's.
    """

    def __init__(self, windows: Windows, others: Iterable[int]) -> None:
        self._windows, self._others = windows, tuple(others)
        self._before = {window.id for window in windows.all()}
        self._looked = self._active = 0.0

    def window(self, child: subprocess.Popen[bytes], deadline: float, *, demanded: bool) -> Window | None:
        """The program's window; None after ``deadline`` seconds, or earlier if no window can be expected.

        No window can be expected if the program failed; and, unless a window is ``demanded``, if the program sleeps
        without a connection to the X server (a server, a relay).
        """
        windows_of_program: list[Window] = []
        self._active = time.monotonic()

        def done(windows: list[Window]) -> bool:
            status = child.poll()
            if status not in (None, 0):
                return True
            new = [window for window in windows if window.id not in self._before]
            if new and status is None:
                theirs = _trees(self._others)
                new = [window for window in new if window.pid not in theirs]
            windows_of_program[:] = new
            return bool(new) or (not demanded and status is None and self._windowless(child.pid))

        self._windows.wait(done, deadline)
        return windows_of_program[0] if windows_of_program else None

    def _windowless(self, pid: int) -> bool:
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        tree, clients = _trees([pid]), self._windows.clients()
        if clients is None or tree & clients or any_running(tree):
            self._active = now
        return now - self._active >= IDLE


def _trees(roots: Iterable[int]) -> set[int]:
    """The processes and all their descendants."""
    return {pid for root in roots for pid in (root, *descendants(root))}
