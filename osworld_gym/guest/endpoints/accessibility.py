"""Endpoints of the accessibility tree: ``/accessibility`` and ``/terminal``, read by a subprocess with a time limit."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..process.commands import Commands
from ..server.answers import Answer, Table, as_json, failed

if TYPE_CHECKING:  # it imports Xlib, which is required only inside a desktop
    from ..x11.windows import Windows

PYTHON = "/usr/bin/python3"  # the system's Python, which has gi and the AT-SPI library
READER = Path(__file__).with_name("atspi_tree.py")
TREE_TIMEOUT = 30.0  # seconds for the tree; what is missing then is left out and reported as truncated
TERMINAL_TIMEOUT = 10.0  # seconds
GRACE = 10.0  # seconds beyond that until the reader is killed
FIX = "apt-get update && apt-get install -y at-spi2-core python3-gi gir1.2-atspi-2.0"


class ReaderFailed(Exception):
    """The reader returned nothing; the message states the reason and the fix."""


class Accessibility:
    """The tree that programs publish through AT-SPI. One reader at a time: two would only slow each other down."""

    def __init__(self, commands: Commands, windows: Windows) -> None:
        self._commands, self._windows = commands, windows
        self._lock = threading.Lock()

    def routes(self) -> Table:
        return {("GET", "/accessibility"): lambda _: self.tree(), ("GET", "/terminal"): lambda _: self.terminal()}

    def tree(self) -> Answer:
        """OSWorld's reply ``{"AT": xml}``; with ``"truncated": true`` if a hung program or the time limit cut it."""
        try:
            said = self._read("tree", TREE_TIMEOUT)
        except ReaderFailed as error:
            return failed(str(error))
        truncated = {"truncated": True} if said["truncated"] else {}
        return as_json({"AT": said["AT"]} | truncated)

    def terminal(self) -> Answer:
        """The text of the active GNOME terminal; null if the active window is not one."""
        front = next((window for window in self._windows.all() if window.active), None)
        if front is None or "gnome-terminal" not in front.name.lower():
            return as_json({"output": None, "status": "success"})
        try:
            said = self._read("terminal", TERMINAL_TIMEOUT)
        except ReaderFailed as error:
            return failed(str(error))
        return as_json({"output": said["output"], "status": "success"})

    def _read(self, what: str, seconds: float) -> dict[str, Any]:
        command = [PYTHON, str(READER), what, f"{seconds:g}"]
        with self._lock:
            try:
                status, out, err = self._commands.execute(command, False, seconds + GRACE)
            except (OSError, TimeoutError) as error:
                raise ReaderFailed(f"the accessibility tree cannot be read: {error}; fix: {FIX}") from error
        if status != 0 or not out.startswith("{"):
            said = err.strip().splitlines()[-1:] or [f"exit status {status}"]
            raise ReaderFailed(f"the accessibility tree cannot be read: {said[0]}; fix: {FIX}")
        return dict(json.loads(out))
