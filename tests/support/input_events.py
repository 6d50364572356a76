"""Input as a list of events, of pyautogui source (which is run against a recorder) and of actions.

An event is ("move", x, y), ("down" or "up", button or key) or ("wheel", axis, +1 or -1). Typed characters are keys; an
upper-case letter is shift and the letter, on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from osworld_gym.types import Action, Point
from osworld_gym.uitars.keys import key_name

Event = tuple[Any, ...]

_KEYS = {"\n": "enter", "\r": "enter", "\t": "tab", " ": "space", "\b": "backspace"}
_BUTTONS = {"left": "left", "primary": "left", "right": "right", "secondary": "right", "middle": "middle"}
_PASTE = (["ctrl", "v"], ["ctrl", "shift", "v"], ["shift", "insert"])


class Recorder:
    """What pyautogui, pyperclip and time do, as events; as in pyautogui 0.9.54 on X."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.pointer: Point | None = None
        self.buttons: set[str] = set()
        self.clipboard: str | None = None

    def moveTo(self, x: Any = None, y: Any = None) -> None:
        at = (x, y)
        if x is not None and at != self.pointer:
            self.events.append(("move", *at))
            self.pointer = at

    def move(self, xOffset: float = 0, yOffset: float = 0) -> None:
        assert self.pointer is not None
        self.moveTo(self.pointer[0] + xOffset, self.pointer[1] + yOffset)

    def mouseDown(self, x: Any = None, y: Any = None, button: str = "left") -> None:
        self.moveTo(x, y)
        if _BUTTONS[button] not in self.buttons:
            self.events.append(("down", f"button {_BUTTONS[button]}"))
        self.buttons.add(_BUTTONS[button])

    def mouseUp(self, x: Any = None, y: Any = None, button: str = "left") -> None:
        self.moveTo(x, y)
        if _BUTTONS[button] in self.buttons:
            self.events.append(("up", f"button {_BUTTONS[button]}"))
        self.buttons.discard(_BUTTONS[button])

    def click(self, x: Any = None, y: Any = None, clicks: int = 1, button: str = "left") -> None:
        self.moveTo(x, y)
        for _i in range(clicks):
            self.mouseDown(button=button)
            self.mouseUp(button=button)

    def doubleClick(self, x: Any = None, y: Any = None, button: str = "left") -> None:
        self.click(x, y, 2, button=button)

    def tripleClick(self, x: Any = None, y: Any = None, button: str = "left") -> None:
        self.click(x, y, 3, button=button)

    def rightClick(self, x: Any = None, y: Any = None) -> None:
        self.click(x, y, button="right")

    def dragTo(self, x: Any = None, y: Any = None, button: str = "left", **_: Any) -> None:
        self.mouseDown(button=button)
        self.moveTo(x, y)
        self.mouseUp(button=button)

    def drag(self, xOffset: float = 0, yOffset: float = 0, button: str = "left") -> None:
        assert self.pointer is not None
        self.dragTo(self.pointer[0] + xOffset, self.pointer[1] + yOffset, button=button)

    def scroll(self, clicks: int, x: Any = None, y: Any = None, axis: str = "vertical") -> None:
        self.moveTo(x, y)
        self.events += [("wheel", axis, 1 if clicks > 0 else -1)] * abs(clicks)

    def hscroll(self, clicks: int, x: Any = None, y: Any = None) -> None:
        self.scroll(clicks, x, y, "horizontal")

    def keyDown(self, key: str) -> None:
        self.events.append(("down", _KEYS.get(key) or key_name(key)))

    def keyUp(self, key: str) -> None:
        self.events.append(("up", _KEYS.get(key) or key_name(key)))

    def hotkey(self, *keys: Any) -> None:
        names = keys[0] if keys and isinstance(keys[0], list) else keys
        found: list[str] = []
        for name in names:
            upper = len(name) == 1 and name.isupper() and "shift" not in found
            found += ["shift", name.lower()] if upper else [name]
        for name in found:
            self.keyDown(name)
        for name in reversed(found):
            self.keyUp(name)

    def press(self, keys: Any, presses: int = 1) -> None:
        for key in ([keys] if isinstance(keys, str) else keys) * presses:
            self.hotkey(key)

    def write(self, message: Any, **_: Any) -> None:
        for character in message:
            self.hotkey(character)

    def sleep(self, seconds: float) -> None:
        pass

    def copy(self, text: str) -> None:
        self.clipboard = text
        self.events.append(("copied", text))


def source_events(source: str) -> list[Event]:
    """The events of pyautogui source; pasted text counts as typed."""
    recorder = Recorder()
    code = "\n".join(line for line in source.splitlines() if not line.startswith("import "))
    exec(code, {"pyautogui": recorder, "pyperclip": recorder, "time": recorder})
    return _normal(recorder.events)


def action_events(actions: Sequence[Action]) -> list[Event]:
    """The events of actions, as the providers perform them."""
    r = Recorder()
    for a in actions:
        if a.start is not None:
            r.moveTo(*a.start)
        if a.kind in ("click", "left_double", "left_triple"):
            r.click(clicks=("click", "left_double", "left_triple").index(a.kind) + 1)
        elif a.kind in ("right_single", "middle_single"):
            r.click(button=a.kind.partition("_")[0])
        elif a.kind == "drag" and a.end is not None:
            r.dragTo(*a.end)
        elif a.kind == "scroll":
            clicks = 5 if a.clicks is None else a.clicks
            clicks = clicks if a.direction in ("up", "right") else -clicks
            (r.scroll if a.direction in ("up", "down") else r.hscroll)(clicks)
        elif a.kind == "hotkey":
            r.hotkey(*(a.key or "").split())
        elif a.kind in ("keydown", "keyup"):
            for name in (a.key or "").split():
                (r.keyDown if a.kind == "keydown" else r.keyUp)(name)
        elif a.kind == "type":
            r.write(a.content or "")
    return _normal(r.events)


def _normal(events: Sequence[Event]) -> list[Event]:
    """Pastes as typed keys, shift and comma as OSWorld's way to type "<"; the rest as it is."""
    found: list[Event] = []
    clipboard: str | None = None
    place = 0
    while place < len(events):
        event = events[place]
        keys = _chord(events, place)
        if event[0] == "copied":
            clipboard = event[1]
        elif keys in _PASTE and clipboard is not None:
            typist = Recorder()
            typist.write(clipboard)
            found += typist.events
            place += 2 * len(keys) - 1
        elif keys == ["shift", ","]:
            found += [("down", "<"), ("up", "<")]
            place += 3
        else:
            found.append(event)
        place += 1
    return found


def _chord(events: Sequence[Event], place: int) -> list[str]:
    """The keys that are pressed from this event on, if they are released in reverse right after; else []."""
    for count in (2, 3):
        part = events[place : place + 2 * count]
        keys = [event[1] for event in part[:count]]
        if part == [("down", key) for key in keys] + [("up", key) for key in reversed(keys)]:
            return keys
    return []
