"""The calls of pyautogui source, read from its syntax tree; nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from osworld_gym.errors import ParseError
from osworld_gym.types import Point
from osworld_gym.uitars.parse import MAX_COORDINATE

_MODULES = frozenset({"pyautogui", "time", "pyperclip"})
#: arguments that OpenCUA's agents correct: of press, write and hotkey
RENAMED = frozenset({"key", "button", "text", "content", "keys", *(f"key{number}" for number in range(1, 10))})
_NAMES = RENAMED | {
    *("x", "y", "xOffset", "yOffset", "clicks", "interval", "duration", "tween", "mouseDownUp", "message", "presses"),
    *("secs", "seconds", "logScreenshot", "_pause"),
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """The constant arguments of one call."""

    positional: list[Any]
    named: dict[str, Any]

    def get(self, place: int, name: str, default: Any = None) -> Any:
        """The argument at a place or of a name."""
        if len(self.positional) > place:
            return self.positional[place]
        return self.named.get(name, default)

    def point(self, place: int = 0) -> Point | None:
        """``x`` and ``y``, or None if there are none. Raises ValueError for one without the other, and no numbers."""
        x, y = self.get(place, "x"), self.get(place + 1, "y")
        if x is None and y is None:
            return None
        return coordinate(x), coordinate(y)


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``module.name``, its arguments, and its source."""

    name: str
    arguments: Arguments
    source: str


def coordinate(value: Any) -> float:
    """A coordinate or a distance, in pixels. Raises ValueError if it is no number or beyond any screen."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_COORDINATE:
        raise ValueError(f"expected a coordinate of at most {MAX_COORDINATE}, got {value!r}")
    return float(value)


def read_calls(source: str) -> Iterator[Call]:
    """The calls in order; imports of pyautogui, time and pyperclip are skipped, guarded ones too.

    Raises:
        ParseError: ``bad_source``: not Python, or anything but calls of a module's function with constants and with
            arguments that pyautogui has, or that OpenCUA's agents correct.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParseError("bad_source", source) from error
    for statement in tree.body:
        if _is_import(statement) or _is_guarded_import(statement):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        yield _call(statement, source)


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


def _call(statement: ast.stmt, source: str) -> Call:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        raise ParseError("bad_source", source)
    if not isinstance(call.func.value, ast.Name) or any(keyword.arg not in _NAMES for keyword in call.keywords):
        raise ParseError("bad_source", source)
    try:
        positional = [ast.literal_eval(argument) for argument in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        text = ast.unparse(call)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ParseError("bad_source", source) from error
    return Call(f"{call.func.value.id}.{call.func.attr}", Arguments(positional, named), text)
