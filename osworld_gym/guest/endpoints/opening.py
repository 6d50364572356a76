"""Endpoints of windows: open a file and wait for its window, activate, close, measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..process.commands import Commands
from ..server.answers import Answer, Table, as_json, as_text, failed, flag_of, path_of, seconds_of, text_of
from ..x11.screen import Screen
from ..x11.titles import shows
from ..x11.windows import Window, Windows
from .observation import DEADLINE, PAINTED, QUIET

OPEN_TIMEOUT = 60.0  # seconds for a file's window; OSWorld waits 1800
SETTLED = 1.0  # seconds of a still screen after which a window that already showed the file is accepted
STEP = 2.0  # seconds for the window manager to follow


class Opening:
    """``/setup/open_file``, ``/setup/activate_window``, ``/setup/close_window``, ``/window_size``."""

    def __init__(self, screen: Screen, windows: Windows, commands: Commands) -> None:
        self._screen, self._windows, self._commands = screen, windows, commands

    def routes(self) -> Table:
        return {
            ("POST", "/setup/open_file"): self.open_file,
            ("POST", "/setup/activate_window"): self.activate_window,
            ("POST", "/setup/close_window"): self.close_window,
            ("POST", "/window_size"): self.window_size,
        }

    def open_file(self, body: Mapping[str, Any]) -> Answer:
        """Opens a file with its application, or starts a program of that name; returns when its window shows."""
        text, deadline = path_of(body, "path"), seconds_of(body, "deadline", OPEN_TIMEOUT)
        path, old = self._commands.expand(text), {(w.id, w.title) for w in self._windows.all()}
        try:
            self._commands.launch(["gio", "open", str(path)] if path.exists() else [text], shell=False)
        except FileNotFoundError as error:
            return failed(f"Application/file not found: {text}; {error}", 404)
        shown: list[Window] = []

        def there(windows: list[Window]) -> bool:
            matching = [window for window in windows if shows(window.title, path)]
            shown[:] = [window for window in matching if (window.id, window.title) not in old]
            shown.extend(window for window in matching if window.active and self._screen.still_for() >= SETTLED)
            return bool(shown)

        if not self._windows.wait(there, deadline):
            return failed(f"Failed to find window for {path.name} within {deadline:g} seconds.")
        self._screen.wait_painted(shown[0].box, PAINTED)
        self._activate(shown[0])
        return as_text("File opened and window activated successfully")

    def activate_window(self, body: Mapping[str, Any]) -> Answer:
        if (window := self._find(body)) is not None:
            self._activate(window)
        return as_text("Window activated successfully")

    def _activate(self, window: Window) -> None:
        self._windows.activate(window)
        self._windows.wait(lambda now: any(w.id == window.id and w.active for w in now), STEP)
        self._screen.wait_still(QUIET, DEADLINE)

    def close_window(self, body: Mapping[str, Any]) -> Answer:
        if (window := self._find(body)) is not None:
            self._windows.close(window)
            self._windows.wait(lambda now: all(w.id != window.id for w in now), STEP)
            self._screen.wait_still(QUIET, DEADLINE)
        return as_text("Window closed successfully.")

    def _find(self, body: Mapping[str, Any]) -> Window | None:
        strict, by_class = flag_of(body, "strict"), flag_of(body, "by_class")
        return self._windows.find(text_of(body, "window_name"), strict=strict, by_class=by_class)

    def window_size(self, body: Mapping[str, Any]) -> Answer:
        """Size of the first window whose WM_CLASS contains the name as one of its two parts, ignoring case."""
        name = text_of(body, "app_class_name").lower()
        for window in self._windows.all():
            if name in (window.name.lower(), *window.name.lower().split(".")):
                return as_json({"width": window.width, "height": window.height})
        return as_json({"error": f"no window of class {name!r}"}, 404)
