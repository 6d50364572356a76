"""Reads pyautogui source as actions (screen pixels): accepts known calls in its syntax tree; never runs it.

Used to convert traces of framework experts (Agent S2 writes such source) to responses of the policy.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from osworld_gym.errors import ParseError
from osworld_gym.types import Action, Point
from osworld_gym.uitars.keys import key_name
from osworld_gym.uitars.parse import MAX_COORDINATE

_MODULES = frozenset({"pyautogui", "time", "pyperclip"})
_WORDS = {"DONE": "finished", "FAIL": "call_user", "WAIT": "wait"}
_SCROLL_CLICKS = 5  #: wheel clicks per scroll action
_MAX_SCROLLS = 10
_MAX_PRESSES = 50


def from_pyautogui(source: str, *, triple_click: bool = False) -> list[Action]:
    """The actions that the source performs; also reads OSWorld's special actions ``DONE``, ``FAIL`` and ``WAIT``.

    A pointer move sets the start of the next action; keys held during a press become one hotkey; a copy to the
    clipboard and ctrl+v become ``type``, shift and comma the text ``<``; enter after typing becomes a newline; a sleep
    is a ``wait`` only if there is nothing else.

    Args:
        source: the source.
        triple_click: whether a triple click is an action, which UI-TARS's prompts do not have.

    Raises:
        ParseError: ``bad_source`` if it is not Python or has anything but known calls with constants;
            ``not_convertible`` if the calls are known but the action space has no equivalent (a click with held keys, a
            middle click, a triple click unless ``triple_click``).
    """
    word = source.strip()
    if word in _WORDS:
        return [Action(_WORDS[word])]
    player = _Player(source, triple_click)
    for name, arguments in _calls(source):
        handler = _HANDLERS.get(name)
        if handler is None:
            raise ParseError("bad_source", source)
        try:
            handler(player, arguments)
        except (TypeError, ValueError, OverflowError) as error:  # an argument of the wrong type, count or size
            raise ParseError("bad_source", source) from error
    return player.end()


@dataclass
class _Arguments:
    positional: list[Any]
    named: dict[str, Any]

    def get(self, place: int, name: str, default: Any = None) -> Any:
        if len(self.positional) > place:
            return self.positional[place]
        return self.named.get(name, default)

    def point(self, place: int = 0) -> Point | None:
        x, y = self.get(place, "x"), self.get(place + 1, "y")
        return None if x is None or y is None else _finite(float(x), float(y))


def _calls(source: str) -> list[tuple[str, _Arguments]]:
    """The calls in order: ``module.name`` and constant arguments."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParseError("bad_source", source) from error
    calls = []
    for statement in tree.body:
        if _is_import(statement) or _is_guarded_import(statement):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        calls.append(_call(statement, source))
    return calls


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import) and all(alias.name in _MODULES for alias in statement.names)


def _is_guarded_import(statement: ast.stmt) -> bool:
    """Whether it imports, and does something else only where that fails: Agent S3 installs pyperclip so."""
    return (
        isinstance(statement, ast.Try)
        and all(map(_is_import, statement.body))
        and all(isinstance(h.type, ast.Name) and h.type.id == "ImportError" for h in statement.handlers)
        and not statement.orelse
        and not statement.finalbody
    )


def _call(statement: ast.stmt, source: str) -> tuple[str, _Arguments]:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        raise ParseError("bad_source", source)
    if not isinstance(call.func.value, ast.Name) or any(keyword.arg is None for keyword in call.keywords):
        raise ParseError("bad_source", source)
    try:
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ParseError("bad_source", source) from error
    return f"{call.func.value.id}.{call.func.attr}", _Arguments(positional, named)


@dataclass
class _Player:
    """State after the calls so far: pointer position, held keys, clipboard, and the actions read."""

    source: str
    triple_click: bool
    actions: list[Action] = field(default_factory=list)
    pointer: Point | None = None
    pressed_at: Point | None = None
    held: list[str] = field(default_factory=list)
    used: bool = True
    clipboard: str | None = None
    slept: bool = False

    def refuse(self) -> ParseError:
        return ParseError("not_convertible", self.source)

    def end(self) -> list[Action]:
        if self.held or self.pressed_at is not None or (self.pointer is not None and not self.actions):
            raise self.refuse()
        if not self.actions and self.slept:
            return [Action("wait")]
        return self.actions

    def move(self, a: _Arguments) -> None:
        self.pointer = a.point() or self.pointer

    def click(self, a: _Arguments, *, button: str | None = None, clicks: int | None = None) -> None:
        self.move(a)
        clicks = int(a.get(2, "clicks", 1)) if clicks is None else clicks
        button = str(a.get(4, "button", "left")) if button is None else button
        kinds = {
            ("left", 1): "click",
            ("primary", 1): "click",
            ("left", 2): "left_double",
            ("right", 1): "right_single",
        }
        if self.triple_click:
            kinds["left", 3] = "left_triple"
        kind = kinds.get((button, clicks))
        if kind is None or self.held or self.pointer is None:
            raise self.refuse()
        self.actions.append(Action(kind, start=self.pointer))

    def drag_to(self, a: _Arguments, *, relative: bool = False) -> None:
        end = a.point() if not relative else _offset(self.pointer, a)
        if self.pointer is None or end is None or self.held or a.named.get("button", "left") != "left":
            raise self.refuse()
        self.actions.append(Action("drag", start=self.pointer, end=end))
        self.pointer = end

    def mouse_down(self, a: _Arguments) -> None:
        self.move(a)
        if self.pointer is None or self.held or a.named.get("button", "left") != "left":
            raise self.refuse()
        self.pressed_at = self.pointer

    def mouse_up(self, a: _Arguments) -> None:
        self.move(a)
        if self.pressed_at is not None and self.pointer is not None:
            moved = self.pointer != self.pressed_at
            start = self.pressed_at
            self.actions.append(
                Action("drag", start=start, end=self.pointer) if moved else Action("click", start=start)
            )
        self.pressed_at = None  # without a preceding press it only ends a drag

    def write(self, a: _Arguments) -> None:
        text = a.get(0, "message")
        if not isinstance(text, str) or self.held:
            raise self.refuse()
        self.type(text)

    def type(self, text: str) -> None:
        if self.actions and self.actions[-1].kind == "type":
            self.actions[-1] = replace(self.actions[-1], content=(self.actions[-1].content or "") + text)
        else:
            self.actions.append(Action("type", content=text))

    def press(self, a: _Arguments) -> None:
        keys = a.get(0, "keys")
        names = [keys] if isinstance(keys, str) else list(keys)
        presses = int(a.get(1, "presses", 1))
        if not 0 <= presses <= _MAX_PRESSES:
            raise self.refuse()
        for name in names * presses:
            self.chord([*self.held, str(name)])

    def hotkey(self, a: _Arguments) -> None:
        names = a.positional[0] if a.positional and isinstance(a.positional[0], list) else a.positional
        self.chord([*self.held, *map(str, names)])

    def chord(self, names: list[str]) -> None:
        keys = [key_name(name) if name.strip() else "space" for name in names]
        if not keys:
            raise self.refuse()
        self.used = True
        pasted = keys in (["ctrl", "v"], ["ctrl", "shift", "v"])
        if pasted and self.clipboard is not None:
            self.type(self.clipboard)
        elif keys == ["shift", ","]:  # how OSWorld types it
            self.type("<")
        elif keys == ["enter"] and self.actions and self.actions[-1].kind == "type":
            self.type("\n")
        else:
            self.actions.append(Action("hotkey", key=" ".join(keys)))

    def key_down(self, a: _Arguments) -> None:
        self.held.append(key_name(str(a.get(0, "key"))))
        self.used = False

    def key_up(self, a: _Arguments) -> None:
        name = key_name(str(a.get(0, "key")))
        if name not in self.held:
            raise self.refuse()
        if not self.used:
            self.chord(list(self.held))
        self.held.remove(name)

    def scroll(self, a: _Arguments, *, sideways: bool = False) -> None:
        clicks = int(a.get(0, "clicks"))
        self.pointer = a.point(1) or self.pointer
        if self.held not in ([], ["shift"]) or clicks == 0:
            raise self.refuse()
        self.used = True
        sideways = sideways or self.held == ["shift"]
        direction = ("right" if clicks > 0 else "left") if sideways else ("up" if clicks > 0 else "down")
        times = min(_MAX_SCROLLS, max(1, round(abs(clicks) / _SCROLL_CLICKS)))
        self.actions += [Action("scroll", start=self.pointer, direction=direction)] * times

    def copy(self, a: _Arguments) -> None:
        self.clipboard = str(a.get(0, "text"))

    def sleep(self, _: _Arguments) -> None:
        self.slept = True


def _offset(pointer: Point | None, a: _Arguments) -> Point | None:
    if pointer is None:
        return None
    dx, dy = a.get(0, "xOffset", 0), a.get(1, "yOffset", 0)
    return _finite(pointer[0] + float(dx), pointer[1] + float(dy))


def _finite(x: float, y: float) -> Point:
    if not (abs(x) <= MAX_COORDINATE and abs(y) <= MAX_COORDINATE):
        raise ValueError(f"coordinates must be at most {MAX_COORDINATE}, got ({x}, {y})")
    return x, y


_HANDLERS: dict[str, Callable[[_Player, _Arguments], None]] = {
    "pyautogui.moveTo": _Player.move,
    "pyautogui.click": _Player.click,
    "pyautogui.leftClick": lambda p, a: p.click(a, button="left", clicks=1),
    "pyautogui.doubleClick": lambda p, a: p.click(a, button="left", clicks=2),
    "pyautogui.tripleClick": lambda p, a: p.click(a, button=str(a.get(3, "button", "left")), clicks=3),
    "pyautogui.rightClick": lambda p, a: p.click(a, button="right", clicks=1),
    "pyautogui.dragTo": _Player.drag_to,
    "pyautogui.drag": lambda p, a: p.drag_to(a, relative=True),
    "pyautogui.dragRel": lambda p, a: p.drag_to(a, relative=True),
    "pyautogui.mouseDown": _Player.mouse_down,
    "pyautogui.mouseUp": _Player.mouse_up,
    "pyautogui.write": _Player.write,
    "pyautogui.typewrite": _Player.write,
    "pyautogui.press": _Player.press,
    "pyautogui.hotkey": _Player.hotkey,
    "pyautogui.keyDown": _Player.key_down,
    "pyautogui.keyUp": _Player.key_up,
    "pyautogui.scroll": _Player.scroll,
    "pyautogui.vscroll": _Player.scroll,
    "pyautogui.hscroll": lambda p, a: p.scroll(a, sideways=True),
    "pyautogui.sleep": _Player.sleep,
    "time.sleep": _Player.sleep,
    "pyperclip.copy": _Player.copy,
}
