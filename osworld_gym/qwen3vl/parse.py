"""Parser of Qwen3-VL's responses: text → thought and actions, points in thousandths of the screen's sides.

The format is that of ``mm_agents/qwen3vl_agent.py`` in xlang-ai/OSWorld, which GUI-Owl 1.5 and EvoCUA share
(``mm_agents/owl15_agent.py``, ``mm_agents/evocua/``)::

    Action: Click the mute button.
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [72, 40]}}
    </tool_call>

The JSON is data: nothing is evaluated. For any text that is not such a response the only exception is
:class:`osworld_gym.ParseError`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from osworld_gym.errors import ParseError
from osworld_gym.types import MAX_WHEEL_CLICKS, Action, Point
from osworld_gym.uitars.keys import is_key, split_keys
from osworld_gym.uitars.parse import MAX_CHARS, MAX_COORDINATE, Parsed

TOOL = "computer_use"
_TAG = re.compile(r"^[ \t]*<tool_call>", re.MULTILINE)
_ANY_TAG = re.compile("<tool_call>")
_END = "</tool_call>"
_ACTION = re.compile(r"^[ \t]*action:(.*)$", re.MULTILINE | re.IGNORECASE)
_THINK = re.compile(r"</?think>")
_MAX_KEYS = 10  #: of one call
# a key's name with a rest of the list's own text around it, ``keys=[ctrl`` and ``c]``, as OSWorld's agents read it
_LISTED_KEY = re.compile(r"(?:keys=)?\[?['\"]?(\w+)['\"]?\]?", re.ASCII)

Arguments = Mapping[str, Any]


class _Refused(Exception):
    """Why a call cannot be performed; its text is the reason of the ParseError."""


def parse(text: str) -> Parsed:
    """Parses one response; several calls are performed in order.

    A ``mouse_move`` right before a click, drag or scroll without a point of its own is that action's point.
    ``terminate`` is ``finished``, with ``status`` ``failure`` it is ``call_user``; ``answer`` is ``finished`` with the
    answer. ``key_down`` and ``key_up``, which EvoCUA has, are read too. More than ``MAX_WHEEL_CLICKS`` wheel clicks are
    that many.

    Raises:
        ParseError: ``text`` is anything else, of any type. ``reason`` is one of: not_text, too_long, no_action (no
            call), bad_call (no JSON object with a name and arguments, or of another tool), unknown_action,
            missing_argument, bad_coordinate, bad_number, bad_string, bad_status, empty_key, unknown_key,
            too_many_keys.
    """
    if not isinstance(text, str):
        raise ParseError("not_text", repr(text))
    if len(text) > MAX_CHARS:
        raise ParseError("too_long", text)
    _, calls = _split(text)
    if not calls:
        raise ParseError("no_action", text)
    try:
        actions = [_action(_arguments(call)) for call in calls]
    except _Refused as error:
        raise ParseError(str(error), text) from error
    return Parsed(thought_of(text), tuple(_joined(actions)))


def thought_of(text: str) -> str:
    """The text before the first call of any response, without the word ``Action:``. Never raises on a string."""
    before, _ = _split(text)
    return _ACTION.sub(lambda line: line[1].strip(), _THINK.sub("", before)).strip()


def action_line(text: str) -> str:
    """What a response says about its action, for later prompts: its line ``Action:``, or the name of its first call.

    Empty if the response has neither. Never raises on a string.
    """
    before, calls = _split(text)
    line = _ACTION.search(before)
    words = line[1].split("Action:")[-1].strip() if line else ""
    if words or not calls:
        return words
    try:
        name = _arguments(calls[0])["action"]
    except _Refused:
        return ""
    return f"Performing {name} action" if name in _READERS else ""


def tagged(text: str) -> tuple[str, list[str]]:
    """The text before the first tag ``<tool_call>``, and what is in each, up to its end or the next one.

    A line begins with a call's tag, as in OSWorld's agent, since a thought may name the tag. Only if no line does, tags
    count wherever they are. Without a tag: the whole text and no call. Never raises on a string.
    """
    tags = list(_TAG.finditer(text)) or list(_ANY_TAG.finditer(text))
    if not tags:
        return text, []
    ends = [*(tag.start() for tag in tags[1:]), len(text)]
    calls = [text[tag.end() : end].partition(_END)[0] for tag, end in zip(tags, ends, strict=True)]
    return text[: tags[0].start()], calls


def _split(text: str) -> tuple[str, list[str]]:
    """The text before the first call, and the source of each call: in tags, or alone in a line if there are no tags."""
    before, calls = tagged(text)
    if calls:
        return before, calls
    lines = text.split("\n")
    bare = [number for number, line in enumerate(lines) if _is_bare(line.strip())]
    return "\n".join(lines[: bare[0]] if bare else lines), [lines[number] for number in bare]


def _is_bare(line: str) -> bool:
    return line.startswith("{") and line.endswith("}") and '"arguments"' in line


def _arguments(call: str) -> Arguments:
    """The arguments of a call, with the text ``action``."""
    try:
        data = json.loads(call)
    except (ValueError, RecursionError) as error:
        raise _Refused("bad_call") from error
    arguments = data.get("arguments") if isinstance(data, dict) and data.get("name") == TOOL else None
    if not isinstance(arguments, dict) or not isinstance(arguments.get("action"), str):
        raise _Refused("bad_call")
    return arguments


def _action(arguments: Arguments) -> Action:
    reader = _READERS.get(arguments["action"])
    if reader is None:
        raise _Refused("unknown_action")
    return reader(arguments)


def _joined(actions: list[Action]) -> list[Action]:
    """The actions, where a move of the pointer to where the next one begins is that one's ``start``."""
    joined: list[Action] = []
    for action in actions:
        before = joined[-1] if joined else None
        if before is not None and before.kind == "hover" and action.kind in _AT_POINTER and action.start is None:
            joined[-1] = replace(action, start=before.start)
        else:
            joined.append(action)
    return joined


def _point(arguments: Arguments) -> Point:
    """The argument ``coordinate``: two numbers."""
    point = arguments.get("coordinate")
    if point is None:
        raise _Refused("missing_argument")
    if not isinstance(point, list) or len(point) != 2:
        raise _Refused("bad_coordinate")
    x, y = (_number(value, "bad_coordinate") for value in point)
    if max(abs(x), abs(y)) > MAX_COORDINATE:
        raise _Refused("bad_coordinate")
    return x, y


def _number(value: Any, reason: str) -> float:
    try:
        number = float(value) if type(value) in (int, float) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise _Refused(reason)
    return number


def _text(arguments: Arguments) -> str:
    """The argument ``text``; half a surrogate pair becomes the replacement character."""
    text = arguments.get("text")
    if text is None:
        raise _Refused("missing_argument")
    if not isinstance(text, str):
        raise _Refused("bad_string")
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _keys(arguments: Arguments) -> str:
    """The argument ``keys`` in pyautogui's names; an upper-case letter is shift and the letter, as pyautogui has it."""
    given = arguments.get("keys")
    if given is None:
        raise _Refused("missing_argument")
    names: list[str] = []
    for name in given if isinstance(given, list) else [given]:
        if not isinstance(name, str):
            raise _Refused("bad_string")
        listed = _LISTED_KEY.fullmatch(name.strip())
        name = name if listed is None else listed[1]
        if len(name) == 1 and name.isupper() and "shift" not in names:
            names.append("shift")
        names += ["space"] if name == " " else split_keys(name)
        if len(names) > _MAX_KEYS:
            raise _Refused("too_many_keys")
    if not names:
        raise _Refused("empty_key")
    if not all(map(is_key, names)) or split_keys(" ".join(names)) != tuple(names):
        raise _Refused("unknown_key")
    return " ".join(names)


def _click(kind: str) -> Callable[[Arguments], Action]:
    """A click, where the pointer is if there is no ``coordinate``."""
    return lambda a: Action(kind, start=None if a.get("coordinate") is None else _point(a))


def _scroll(positive: str, negative: str) -> Callable[[Arguments], Action]:
    """Wheel clicks where the pointer is; the sign of ``pixels`` is the direction."""

    def read(arguments: Arguments) -> Action:
        if arguments.get("pixels") is None:
            raise _Refused("missing_argument")
        clicks = int(_number(arguments["pixels"], "bad_number"))
        direction = positive if clicks >= 0 else negative
        return Action("scroll", direction=direction, clicks=min(abs(clicks), MAX_WHEEL_CLICKS))

    return read


def _terminate(arguments: Arguments) -> Action:
    status = arguments.get("status", "success")
    kinds = {"success": "finished", "failure": "call_user"}
    if not isinstance(status, str) or status.lower() not in kinds:
        raise _Refused("bad_status")
    return Action(kinds[status.lower()])


_AT_POINTER = ("click", "left_double", "left_triple", "right_single", "middle_single", "drag", "scroll")
_READERS: Mapping[str, Callable[[Arguments], Action]] = MappingProxyType(
    {
        "left_click": _click("click"),
        "click": _click("click"),  # EvoCUA and GUI-Owl 1.5, as their agents read it
        "double_click": _click("left_double"),
        "triple_click": _click("left_triple"),
        "right_click": _click("right_single"),
        "middle_click": _click("middle_single"),
        "mouse_move": lambda a: Action("hover", start=_point(a)),
        "left_click_drag": lambda a: Action("drag", end=_point(a)),
        "drag": lambda a: Action("drag", end=_point(a)),  # GUI-Owl 1.5, likewise
        "key": lambda a: Action("hotkey", key=_keys(a)),
        "key_down": lambda a: Action("keydown", key=_keys(a)),
        "key_up": lambda a: Action("keyup", key=_keys(a)),
        "type": lambda a: Action("type", content=_text(a)),
        "scroll": _scroll("up", "down"),
        "hscroll": _scroll("right", "left"),
        "wait": lambda _: Action("wait"),
        "terminate": _terminate,
        "answer": lambda a: Action("finished", content=_text(a)),
    }
)
