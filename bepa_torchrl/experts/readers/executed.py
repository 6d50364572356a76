"""Reads what a step executed: the sources of a line's ``action``, their actions and points. Nothing is run here."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any

from osworld_gym.errors import ParseError
from osworld_gym.types import Action, Point
from osworld_gym.uitars.pyautogui import read_pyautogui

_WORDS = ("DONE", "FAIL")
_POINTED = {
    *("click", "leftClick", "rightClick", "middleClick", "doubleClick", "tripleClick"),
    *("moveTo", "dragTo", "mouseDown", "mouseUp", "scroll", "vscroll", "hscroll"),
}


def executed_sources(action: Any) -> list[str]:
    """The sources that a line's ``action`` executed, in order.

    It is pyautogui source or ``DONE``, ``FAIL``, ``WAIT``; a list of these; or an object: Claude's, with the source in
    ``command`` or the end in ``action_type``, and OpenAI's, with the source in ``action``.

    Raises:
        ValueError: anything else.
    """
    if action is None:
        return []
    if isinstance(action, str):
        return [action]
    if isinstance(action, list):
        return [source for part in action for source in executed_sources(part)]
    if isinstance(action, Mapping):
        if action.get("action_type") in _WORDS:
            return [str(action["action_type"])]
        source = action.get("command", action.get("action"))
        if isinstance(source, str):
            return [source]
        raise ValueError(f"no source in the action object with the keys {', '.join(sorted(map(str, action))[:8])}")
    raise ValueError(f"expected the executed source, got {type(action).__name__}")


def executed_actions(sources: Sequence[str]) -> tuple[tuple[Action, ...], str]:
    """The actions that the sources perform, in screen pixels, and why they are not all of it; empty if they are.

    Where a source cannot be read there are no actions (a reason of
    :func:`~osworld_gym.uitars.read_pyautogui.read_pyautogui`); where they are not exactly its input, as that function
    says: ``not_exact``.
    """
    actions: list[Action] = []
    inexact = False
    for source in sources:
        if not source.strip():
            continue
        try:
            reading = read_pyautogui(source, every=True)
        except ParseError as error:
            return (), error.reason
        actions += reading.actions
        inexact = inexact or bool(reading.inexact)
    return tuple(actions), "not_exact" if inexact else ""


def source_points(source: str) -> list[Point]:
    """The points of the pyautogui calls in a source, in order, in its own units. Never raises on a string."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    points = (_point(call) for call in calls if _name(call.func) in _POINTED)
    return [point for point in points if point is not None]


def describe(actions: Sequence[Action]) -> str:
    """One line about what the actions do, for a plan of a step without texts; empty for none."""
    return ", then ".join(part for part in map(_describe, actions) if part)


def _describe(action: Action) -> str:
    at = (
        ""
        if action.start is None
        else f" at ({math.floor(action.start[0] + 0.5)}, {math.floor(action.start[1] + 0.5)})"
    )
    names = {
        "click": "Click",
        "left_double": "Double-click",
        "left_triple": "Triple-click",
        "right_single": "Right-click",
        "middle_single": "Middle-click",
        "hover": "Point",
    }
    if action.kind in names:
        return f"{names[action.kind]}{at}"
    if action.kind == "drag" and action.end is not None:
        return f"Drag{at.replace(' at', ' from')} to ({action.end[0]:.0f}, {action.end[1]:.0f})"
    if action.kind == "type":
        return f"Type {action.content!r}"
    if action.kind in ("hotkey", "keydown", "keyup"):
        return f"{ {'hotkey': 'Press', 'keydown': 'Hold', 'keyup': 'Release'}[action.kind] } {action.key}"
    return f"Scroll {action.direction}{at}" if action.kind == "scroll" else ""


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else ""


def _point(call: ast.Call) -> Point | None:
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    first = 1 if _name(call.func).endswith("scroll") else 0
    parts = [*call.args[first : first + 2], *(named[name] for name in ("x", "y") if name in named)]
    try:
        numbers = [float(ast.literal_eval(part)) for part in parts]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None
    return (numbers[0], numbers[1]) if len(numbers) == 2 and all(map(math.isfinite, numbers)) else None
