"""Input events of pyautogui source, to tell whether a step's actions are exactly what was executed. Nothing is run.

Two sources are the same input if they move the pointer to the same points and press the same buttons and keys in the
same order. Pauses are no input, a move to where the pointer is does nothing, and pasted text counts as typed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from osworld_gym.types import Action, Point
from osworld_gym.uitars.keys import key_name
from osworld_gym.uitars.pyautogui import to_pyautogui

Event = tuple[
    Any, ...
]  #: ("move", x, y), ("scroll" or "hscroll", clicks), (True or False for down or up, button or key)

_WORDS = ("DONE", "FAIL", "WAIT")
_CHARACTERS = {"\n": "enter", "\r": "enter", "\t": "tab", " ": "space"}
_TOLERANCE = 1.0  #: pixels; sources round and truncate points


def same_input(sources: Sequence[str], actions: Sequence[Action]) -> bool:
    """Whether the actions are the input of the executed sources, no more and no less."""
    executed = input_events([source for source in sources if source.strip() not in _WORDS])
    represented = input_events([to_pyautogui(actions)])
    if executed is None or represented is None or len(executed) != len(represented):
        return False
    return all(_same(*pair) for pair in zip(executed, represented, strict=True))


def input_events(sources: Sequence[str]) -> list[Event] | None:
    """The events of the sources, in order; None if one has something that is not read here."""
    keyboard_and_mouse = _Input()
    for source in sources:
        try:
            calls = [node for node in ast.parse(source).body if isinstance(node, ast.Expr)]
            for statement in calls:
                if isinstance(statement.value, ast.Call):
                    keyboard_and_mouse.call(statement.value)
        except (SyntaxError, ValueError, TypeError, KeyError, IndexError, RecursionError, MemoryError):
            return None
    return keyboard_and_mouse.events


def _same(one: Event, other: Event) -> bool:
    if one[0] == other[0] == "move":
        return all(abs(a - b) <= _TOLERANCE for a, b in zip(one[1:], other[1:], strict=True))
    return one == other


@dataclass
class _Input:
    """The events so far."""

    events: list[Event] = field(default_factory=list)
    pointer: Point | None = None
    buttons: set[str] = field(default_factory=set)
    clipboard: str | None = None

    def call(self, call: ast.Call) -> None:
        """One call with constant arguments. Raises KeyError for an unknown function, ValueError for other arguments."""
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        name = ast.unparse(call.func).partition(".")[2]

        def get(place: int, key: str, default: Any = None) -> Any:
            return positional[place] if len(positional) > place else named.get(key, default)

        if name == "hotkey":
            self.hotkey([str(key) for part in positional for key in (part if isinstance(part, list) else [part])])
        else:
            _CALLS[name](self, get)

    def move(self, x: Any, y: Any) -> None:
        if x is None or y is None:
            return
        at = float(x), float(y)
        if self.pointer is None or not _same(("move", *self.pointer), ("move", *at)):
            self.events.append(("move", *at))
        self.pointer = at

    def button(self, down: bool, name: str) -> None:
        name = "left" if name == "primary" else name
        if down or name in self.buttons:  # a release without a press does nothing
            self.events.append((down, name))
        (self.buttons.add if down else self.buttons.discard)(name)

    def click(self, get: Callable[..., Any], clicks: int | None = None, button: str | None = None) -> None:
        self.move(get(0, "x"), get(1, "y"))
        for _ in range(int(get(2, "clicks", 1)) if clicks is None else clicks):
            for down in (True, False):
                self.button(down, str(get(4, "button", "left")) if button is None else button)

    def press_button(self, get: Callable[..., Any], down: bool) -> None:
        self.move(get(0, "x"), get(1, "y"))
        self.button(down, str(get(2, "button", "left")))

    def drag(self, get: Callable[..., Any], relative: bool) -> None:
        self.button(True, str(get(4, "button", "left")))
        if relative and self.pointer is not None:
            x, y = get(0, "xOffset", 0), get(1, "yOffset", 0)
            self.move(self.pointer[0] + float(x), self.pointer[1] + float(y))
        else:
            self.move(get(0, "x"), get(1, "y"))
        self.button(False, str(get(4, "button", "left")))

    def key(self, down: bool, name: str) -> None:
        self.events.append((down, _CHARACTERS.get(name, key_name(name) if len(name) > 1 else name)))

    def tap(self, name: str) -> None:
        self.key(True, name)
        self.key(False, name)

    def hotkey(self, names: list[str]) -> None:
        if self.clipboard is not None and [key_name(name) for name in names] in (["ctrl", "v"], ["ctrl", "shift", "v"]):
            self.write(self.clipboard)
            return
        if [key_name(name) for name in names] == ["shift", ","]:  # OSWorld's way to type it
            self.write("<")
            return
        for name in names:
            self.key(True, name)
        for name in reversed(names):
            self.key(False, name)

    def write(self, text: str) -> None:
        for character in text.replace("\r\n", "\n"):
            self.tap(character)

    def press(self, get: Callable[..., Any]) -> None:
        keys = get(0, "keys")
        for name in ([keys] if isinstance(keys, str) else list(keys)) * int(get(1, "presses", 1)):
            self.tap(str(name))

    def scroll(self, get: Callable[..., Any], kind: str) -> None:
        self.move(get(1, "x"), get(2, "y"))
        clicks = int(get(0, "clicks"))
        if self.events and self.events[-1][0] == kind:
            clicks += self.events.pop()[1]
        self.events.append((kind, clicks))

    def copy(self, text: str) -> None:
        self.clipboard = text


_CALLS: dict[str, Callable[[_Input, Callable[..., Any]], None]] = {
    "moveTo": lambda i, get: i.move(get(0, "x"), get(1, "y")),
    "click": _Input.click,
    "leftClick": lambda i, get: i.click(get, 1, "left"),
    "rightClick": lambda i, get: i.click(get, 1, "right"),
    "middleClick": lambda i, get: i.click(get, 1, "middle"),
    "doubleClick": lambda i, get: i.click(get, 2, str(get(3, "button", "left"))),
    "tripleClick": lambda i, get: i.click(get, 3, str(get(3, "button", "left"))),
    "dragTo": lambda i, get: i.drag(get, False),
    "drag": lambda i, get: i.drag(get, True),
    "dragRel": lambda i, get: i.drag(get, True),
    "mouseDown": lambda i, get: i.press_button(get, True),
    "mouseUp": lambda i, get: i.press_button(get, False),
    "write": lambda i, get: i.write(str(get(0, "message"))),
    "typewrite": lambda i, get: i.write(str(get(0, "message"))),
    "press": _Input.press,
    "keyDown": lambda i, get: i.key(True, str(get(0, "key"))),
    "keyUp": lambda i, get: i.key(False, str(get(0, "key"))),
    "scroll": lambda i, get: i.scroll(get, "scroll"),
    "vscroll": lambda i, get: i.scroll(get, "scroll"),
    "hscroll": lambda i, get: i.scroll(get, "hscroll"),
    "sleep": lambda *_: None,
    "copy": lambda i, get: i.copy(str(get(0, "text"))),
}
