"""Formats thought and actions as a response of Qwen3-VL's form; ``parse`` is the inverse.

The form has one line ``Action:``, which later prompts repeat. Here it is the whole thought, or the names of the actions
if there is no thought. An action that begins at a point but has no argument for it (a drag, a scroll) is two calls:
``mouse_move`` to the point, and the action.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from osworld_gym.qwen3vl.parse import TOOL
from osworld_gym.types import MAX_WHEEL_CLICKS, Action, Point
from osworld_gym.uitars.keys import split_keys
from osworld_gym.uitars.read_pyautogui import SCROLL_CLICKS

_MARKS = re.compile(r"</?(?:tool_call|think)>")  # a response's own tags
_TAG = re.compile(r"<(?=/?tool_call>)")

Call = dict[str, Any]  #: arguments of one call


def format_response(thought: str, actions: Sequence[Action]) -> str:
    """The complete response: the line ``Action:`` and the calls. Points are rounded.

    The content of ``finished`` is left out, since OSWorld's agent does nothing at an ``answer``. Scrolls in one
    direction at one place become one call.

    Raises:
        ValueError: there is no action, one of a mobile device, or one that lacks an argument.
    """
    if not actions:
        raise ValueError("format_response requires at least one action, got none")
    names = ", then ".join(action.kind.replace("_", " ") for action in actions) + "."
    words = " ".join(_MARKS.sub(" ", thought).split())
    calls = [call for action in _turned(actions) for call in _calls(action)]
    return f"Action: {words or names}\n" + "\n".join(map(_block, calls))


def _block(call: Call) -> str:
    """One call in its tags; tags in a string are escaped, so that no text ends the call."""
    text = json.dumps({"name": TOOL, "arguments": call}, ensure_ascii=False)
    escaped = _TAG.sub(r"\\u003c", text)
    return f"<tool_call>\n{escaped}\n</tool_call>"


def _turned(actions: Sequence[Action]) -> list[Action]:
    """The actions with a number of wheel clicks in each scroll, and equal scrolls one after another as one."""
    turned: list[Action] = []
    for action in actions:
        if action.kind == "scroll" and action.clicks is None:
            action = replace(action, clicks=SCROLL_CLICKS)
        last = turned[-1] if turned else None
        clicks = (action.clicks or 0) + ((last.clicks or 0) if last else 0)
        if last is not None and _same_wheel(last, action) and clicks <= MAX_WHEEL_CLICKS:
            turned[-1] = replace(last, clicks=clicks)
        else:
            turned.append(action)
    return turned


def _same_wheel(one: Action, other: Action) -> bool:
    return one.kind == other.kind == "scroll" and (one.start, one.direction) == (other.start, other.direction)


def _calls(action: Action) -> list[Call]:
    writer = _WRITERS.get(action.kind)
    if writer is None:
        raise ValueError(f"Qwen3-VL's text has no form of {action.kind}; it has {', '.join(_WRITERS)}")
    return writer(action)


def _xy(point: Point | None) -> list[int]:
    if point is None:
        raise ValueError("this action requires a point, got None")
    return [math.floor(value + 0.5) for value in point]


def _click(name: str) -> Callable[[Action], list[Call]]:
    return lambda a: [{"action": name} if a.start is None else {"action": name, "coordinate": _xy(a.start)}]


def _move(action: Action) -> list[Call]:
    return [] if action.start is None else [{"action": "mouse_move", "coordinate": _xy(action.start)}]


def _scroll(action: Action) -> list[Call]:
    name = {"up": "scroll", "down": "scroll", "left": "hscroll", "right": "hscroll"}.get(action.direction or "")
    if name is None:
        raise ValueError(f"scroll requires the direction up, down, left or right, got {action.direction!r}")
    clicks = action.clicks or 0
    return [*_move(action), {"action": name, "pixels": clicks if action.direction in ("up", "right") else -clicks}]


def _keys(name: str) -> Callable[[Action], list[Call]]:
    def write(action: Action) -> list[Call]:
        keys = list(split_keys(action.key or ""))
        if not keys:
            raise ValueError(f"{action.kind} requires a key, got {action.key!r}")
        return [{"action": name, "keys": keys}]

    return write


_WRITERS: Mapping[str, Callable[[Action], list[Call]]] = MappingProxyType(
    {
        "click": _click("left_click"),
        "left_double": _click("double_click"),
        "left_triple": _click("triple_click"),
        "right_single": _click("right_click"),
        "middle_single": _click("middle_click"),
        "hover": lambda a: [{"action": "mouse_move", "coordinate": _xy(a.start)}],
        "drag": lambda a: [*_move(a), {"action": "left_click_drag", "coordinate": _xy(a.end)}],
        "hotkey": _keys("key"),
        "keydown": _keys("key_down"),
        "keyup": _keys("key_up"),
        "type": lambda a: [{"action": "type", "text": a.content or ""}],
        "scroll": _scroll,
        "wait": lambda _: [{"action": "wait", "time": 5}],
        "finished": lambda _: [{"action": "terminate", "status": "success"}],
        "call_user": lambda _: [{"action": "terminate", "status": "failure"}],
    }
)
