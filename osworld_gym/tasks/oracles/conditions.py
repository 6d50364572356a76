"""Conditions on a desktop's windows and files that a script of :class:`LocalOracle` waits for, as data.

A condition is one of

- ``{"window": text}``: a window whose title contains the text exists; ``{"active": text}``: such a window has the
  focus; ``{"gone": text}``: there is no such window;
- ``{"file": path}``: the file exists and is not empty; ``{"changed": path}``: it is not empty and differs from its
  content when the oracle began; ``{"lacks": path}``: the file does not exist;
- ``{"menus": count}``: at least so many menus are open;
- ``{"says": regex, "command": [...]}``: the command's output matches;
- ``{"any": [conditions]}`` and ``{"all": [conditions]}``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason, TaskError

DEADLINE = 60.0  # seconds for a condition to be met
POLL = 0.1  # seconds between checks: neither windows nor files send an event

Condition = Mapping[str, Any]


class Conditions:
    """The conditions of one script, with the initial content of the files they watch.

    Raises:
        TaskError: a condition is malformed.
    """

    def __init__(self, conditions: Iterable[Condition | None]) -> None:
        self._watched = {
            str(one["changed"]) for c in conditions if c is not None for one in _flat(c) if "changed" in one
        }
        self._before: dict[str, bytes | None] | None = None

    def begin(self, desktop: Desktop) -> None:
        """Reads the watched files; further calls do nothing."""
        if self._before is None:
            self._before = {path: _read(desktop, path) for path in self._watched}

    def met(self, condition: Condition | None, desktop: Desktop) -> bool:
        """Whether the condition is met now; None is always met."""
        if condition is None:
            return True
        kind = _kind(condition)
        if kind in ("any", "all"):
            return (any if kind == "any" else all)(self.met(one, desktop) for one in condition[kind])
        if kind == "changed":
            return self._changed(str(condition["changed"]), desktop)
        return _KINDS[kind](condition, desktop)

    def _changed(self, path: str, desktop: Desktop) -> bool:
        now = _read(desktop, path)
        if not now or now == (self._before or {}).get(path):
            return False
        time.sleep(POLL)  # an application may still be writing it
        return _read(desktop, path) == now

    def wait(self, condition: Condition | None, desktop: Desktop) -> bool:
        """Waits until the condition is met.

        Returns:
            False if it was already met, True if it had to wait.

        Raises:
            DesktopError: ``evaluator_failed`` after ``DEADLINE`` seconds.
        """
        if self.met(condition, desktop):
            return False
        end = time.monotonic() + DEADLINE
        while not self.met(condition, desktop):
            if time.monotonic() >= end:
                titles = [window["title"] for window in windows(desktop)]
                message = f"the oracle waited {DEADLINE:g} s for {dict(condition or {})}; windows: {titles}"
                raise DesktopError(FailureReason.evaluator_failed, message)
            time.sleep(POLL)
        return True


def windows(desktop: Desktop) -> list[dict[str, Any]]:
    """The desktop's windows.

    Raises:
        TaskError: it has no method ``windows``.
    """
    ask: Callable[[], list[dict[str, Any]]] | None = getattr(desktop, "windows", None)
    if ask is None:
        raise _lists_none("windows", desktop)
    return ask()


def popups(desktop: Desktop) -> list[dict[str, Any]]:
    """The desktop's open menus.

    Raises:
        TaskError: it has no method ``popups``.
    """
    ask: Callable[[], list[dict[str, Any]]] | None = getattr(desktop, "popups", None)
    if ask is None:
        raise _lists_none("menus", desktop)
    return ask()


def _lists_none(what: str, desktop: Desktop) -> TaskError:
    return TaskError(
        f"an oracle with oracle.type 'local' requires a desktop that lists its {what}, got {type(desktop).__name__}; "
        "fix: provider local, container, vm or remote; on the simulated desktop an oracle.type 'sim' with goals"
    )


def _kind(condition: Condition) -> str:
    kinds = [key for key in condition if key != "command"]
    if len(kinds) != 1 or kinds[0] not in (*_KINDS, "any", "all", "changed"):
        known = ", ".join([*_KINDS, "changed", "any", "all"])
        raise TaskError(f"an oracle's condition requires one of {known}, got {dict(condition)!r}")
    return kinds[0]


def _flat(condition: Condition) -> list[Condition]:
    """The conditions inside ``any`` and ``all``, recursively; else the condition itself."""
    kind = _kind(condition)
    return [one for part in condition[kind] for one in _flat(part)] if kind in ("any", "all") else [condition]


def _read(desktop: Desktop, path: str) -> bytes | None:
    try:
        return desktop.read_file(path)
    except FileNotFoundError:
        return None


def _titled(text: str, desktop: Desktop) -> list[dict[str, Any]]:
    return [window for window in windows(desktop) if text.lower() in window["title"].lower()]


_KINDS: dict[str, Callable[[Condition, Desktop], bool]] = {
    "window": lambda c, desktop: bool(_titled(c["window"], desktop)),
    "active": lambda c, desktop: any(window["active"] for window in _titled(c["active"], desktop)),
    "gone": lambda c, desktop: not _titled(c["gone"], desktop),
    "menus": lambda c, desktop: len(popups(desktop)) >= c["menus"],
    "file": lambda c, desktop: bool(_read(desktop, c["file"])),
    "lacks": lambda c, desktop: _read(desktop, c["lacks"]) is None,
    "says": lambda c, desktop: re.search(c["says"], desktop.run(c["command"]).output) is not None,
}
