"""Writes actions (screen pixels) as pyautogui source for OSWorld's ``/execute``. The source is never run here.

The inverse is :mod:`osworld_gym.uitars.read_pyautogui`.

Unlike in OSWorld's adapter, strings are quoted with ``repr``, newlines become presses of enter, thoughts are not in the
code, key names are mapped, and characters outside ASCII are pasted from the clipboard. ``<`` is shift and comma, as in
OSWorld: pyautogui types ``>`` instead (its issue 198).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from osworld_gym.guest.pixels import pixel
from osworld_gym.types import Action, Point
from osworld_gym.uitars.keys import split_keys
from osworld_gym.uitars.read_pyautogui import SCROLL_CLICKS, from_pyautogui, read_pyautogui

__all__ = ["SCROLL_CLICKS", "from_pyautogui", "official_action", "read_pyautogui", "to_pyautogui"]

WAIT_SECONDS = 5  #: as stated in the prompt: "Sleep for 5s"
PASTE_SECONDS = 0.5  #: pause after a paste before the clipboard may change; there is no event to wait for

_WORDS = {"finished": "DONE", "call_user": "FAIL", "wait": "WAIT"}  # of OSWorld's own action space
_PIECES = re.compile(r"([ -;=-~]+|[<\n\t])")  # printable ASCII that pyautogui types, or a key; the rest is pasted
_KEYS = {"\n": "press('enter')", "\t": "press('tab')", "<": "hotkey('shift', ',')"}


def to_pyautogui(actions: Sequence[Action]) -> str:
    """Source that performs the actions in order and imports only what it uses; "" if there is nothing to do.

    ``finished`` and ``call_user`` do nothing. Coordinates are rounded (pyautogui itself truncates).

    Raises:
        ValueError: an action that a desktop does not have (``long_press``, ``open_app``, ...).
    """
    lines: list[str] = []
    for action in actions:
        if action.kind not in _WRITERS:
            raise ValueError(f"no pyautogui source for {action.kind!r}; desktop actions are: {', '.join(_WRITERS)}")
        lines += _WRITERS[action.kind](action)
    if not lines:
        return ""
    body = "\n".join(lines)
    modules = [name for name in ("pyautogui", "pyperclip", "time") if f"{name}." in _code_only(body)]
    return "\n".join([f"import {name}" for name in modules] + lines)


def official_action(actions: Sequence[Action]) -> str:
    """The actions of one step as OSWorld logs them: ``DONE``, ``FAIL`` or ``WAIT`` for one such action, else source.

    Raises:
        ValueError: as :func:`to_pyautogui`.
    """
    if len(actions) == 1 and actions[0].kind in _WORDS:
        return _WORDS[actions[0].kind]
    return to_pyautogui(actions)


def _code_only(source: str) -> str:
    """The source without its string literals, to find the modules that it uses."""
    return re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "''", source)


def _xy(point: Point | None) -> str:
    if point is None:
        raise ValueError("this action requires a point, got None")
    x, y = pixel(point)
    return f"{x}, {y}"


def _click(call: str, action: Action, button: str) -> list[str]:
    """A click at the point, or where the pointer is."""
    at = "" if action.start is None else f"{_xy(action.start)}, "
    return [f"pyautogui.{call}({at}button={button!r})"]


def _move(action: Action) -> list[str]:
    """The move to where the action begins; nothing if that is where the pointer is."""
    return [] if action.start is None else [f"pyautogui.moveTo({_xy(action.start)})"]


def _drag(action: Action) -> list[str]:
    return [*_move(action), f"pyautogui.dragTo({_xy(action.end)}, duration=1.0, button='left')"]


def _hotkey(action: Action) -> list[str]:
    keys = split_keys(action.key or "")
    return [f"pyautogui.hotkey({', '.join(repr(key) for key in keys)})"] if keys else []


def _type(action: Action) -> list[str]:
    lines: list[str] = []
    for place, piece in enumerate(_PIECES.split(action.content or "")):
        if piece in _KEYS:
            lines.append(f"pyautogui.{_KEYS[piece]}")
        elif place % 2:
            lines.append(f"pyautogui.write({piece!r}, interval=0.01)")
        elif piece:
            lines.append(f"pyperclip.copy({piece!r})")
            lines.append("pyautogui.hotkey('ctrl', 'v')")
            lines.append(f"time.sleep({PASTE_SECONDS})")
    return lines


def _scroll(action: Action) -> list[str]:
    call = "scroll" if action.direction in ("up", "down") else "hscroll"
    clicks = SCROLL_CLICKS if action.clicks is None else action.clicks
    return [*_move(action), f"pyautogui.{call}({clicks if action.direction in ('up', 'right') else -clicks})"]


_WRITERS: dict[str, Callable[[Action], list[str]]] = {
    "click": lambda a: _click("click", a, "left"),
    "left_double": lambda a: _click("doubleClick", a, "left"),
    "left_triple": lambda a: _click("tripleClick", a, "left"),
    "right_single": lambda a: _click("click", a, "right"),
    "middle_single": lambda a: _click("click", a, "middle"),
    "hover": lambda a: [f"pyautogui.moveTo({_xy(a.start)})"],
    "keydown": lambda a: [f"pyautogui.keyDown({key!r})" for key in split_keys(a.key or "")],
    "keyup": lambda a: [f"pyautogui.keyUp({key!r})" for key in split_keys(a.key or "")],
    "drag": _drag,
    "hotkey": _hotkey,
    "type": _type,
    "scroll": _scroll,
    "wait": lambda _: [f"time.sleep({WAIT_SECONDS})"],
    "finished": lambda _: [],
    "call_user": lambda _: [],
}
