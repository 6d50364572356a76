"""Parser of OpenCUA's responses: text → thought and actions, in pixels of the image that the model saw.

The format is that of ``mm_agents/opencua/opencua_agent.py`` in xlang-ai/OSWorld (``parse_response_to_cot_and_action``):
the sections ``## Observation:``, ``## Thought:`` and ``## Action:``, of which only the last is required, then a code
block; the last code block counts. An example::

    ## Thought:
    The sound is on.

    ## Action:
    Click the mute button.

    ## Code:
    ```python
    pyautogui.click(x=72, y=40)
    ```

The code is pyautogui calls, or one call of ``computer.wait``, ``computer.terminate`` or ``computer.triple_click``.
It is never evaluated; for any text that is not such a response the only exception is :class:`osworld_gym.ParseError`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from osworld_gym.errors import ParseError
from osworld_gym.types import Action, Point
from osworld_gym.uitars.parse import MAX_CHARS, MAX_COORDINATE, Parsed
from osworld_gym.uitars.read_pyautogui import from_pyautogui

_HEADING = re.compile(r"^##[ \t]*(Observation|Thought|Action|Code)\b[ \t]*:?[ \t]*$", re.MULTILINE)
_FENCE = "```"
_LANGUAGE = re.compile(r"(?:code|python)\b", re.IGNORECASE)
_COMPUTER = "computer"


def parse(text: str) -> Parsed:
    """Parses one response. ``thought`` joins the sections ``Thought`` and ``Action``, which has no coordinates.

    ``computer.terminate(status="success")`` is ``finished``, ``status="failure"`` is ``call_user``.

    Raises:
        ParseError: ``text`` is anything else, of any type. ``reason`` is one of: not_text, too_long, no_action (no
            section ``Action`` or no code block), bad_call (an unknown function of ``computer`` or bad arguments), and
            those of :func:`osworld_gym.uitars.read_pyautogui.from_pyautogui`.
    """
    if not isinstance(text, str):
        raise ParseError("not_text", repr(text))
    if len(text) > MAX_CHARS:
        raise ParseError("too_long", text)
    blocks = text.split(_FENCE)
    if len(blocks) < 3 or not sections(text).get("Action"):
        raise ParseError("no_action", text)
    last = blocks[_last_block(blocks)]
    code = _LANGUAGE.sub("", last.strip(), count=1) if _LANGUAGE.match(last.strip()) else last
    try:
        return Parsed(thought_of(text), actions_of(code.strip()))
    except ParseError as error:
        raise ParseError(error.reason, text) from error


def thought_of(text: str) -> str:
    """The thought of any response, also an unparsable one: ``Thought`` and ``Action``. Never raises on a string."""
    parts = sections(text)
    return "\n\n".join(part for part in (parts.get("Thought"), parts.get("Action")) if part)


def sections(text: str) -> dict[str, str]:
    """The sections before the last code block of any text: heading (such as ``Thought``) → text without spaces around.

    A heading's last occurrence counts. Never raises on a string.
    """
    blocks = text.split(_FENCE)
    parts = _HEADING.split(_FENCE.join(blocks[: _last_block(blocks)]))
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _last_block(blocks: Sequence[str]) -> int:
    """The number of the last code block among the parts between fences; of the first fence's part without a block."""
    if len(blocks) < 3:
        return 1
    return len(blocks) - 2 if len(blocks) % 2 else len(blocks) - 3  # even: the last fence is not closed


def actions_of(code: str) -> tuple[Action, ...]:
    """The actions of a code block. A wait, else an end, anywhere in it is all that it does, as in OSWorld's agent.

    Args:
        code: source, which is read as syntax.

    Raises:
        ParseError: as :func:`parse`.
    """
    calls = _computer_calls(code) if _COMPUTER in code else []
    if calls:
        return (_computer_call(min(calls, key=_computer_order), code),)
    actions = tuple(from_pyautogui(code, every=True))
    if not actions:
        raise ParseError("no_action", code)
    return actions


def _computer_order(call: ast.Call) -> int:
    names = ("wait", "terminate")
    return names.index(_name(call)) if _name(call) in names else len(names)


def _name(call: ast.Call) -> str:
    """The function of ``computer`` that is called; empty for other calls."""
    found = call.func
    if isinstance(found, ast.Attribute) and isinstance(found.value, ast.Name) and found.value.id == _COMPUTER:
        return found.attr
    return ""


def _computer_calls(code: str) -> list[ast.Call]:
    """The calls of ``computer.*`` that decide about the block: of a wait or an end, or the only call that there is."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParseError("bad_call" if code.startswith(f"{_COMPUTER}.") else "bad_source", code) from error
    calls = [line.value for line in body if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call)]
    ours = [call for call in calls if _name(call)]
    return ours if len(body) == 1 else [call for call in ours if _computer_order(call) < 2]


def _computer_call(call: ast.Call, text: str) -> Action:
    """One call of ``computer.*``: its arguments are constants."""
    name, (positional, named) = _name(call), _arguments(call, text)
    if name == "wait":
        return Action("wait")
    if name == "terminate":
        status = positional[0] if positional else named.get("status")
        kinds = {"success": "finished", "failure": "call_user", "fail": "call_user"}
        kind = kinds.get(status.lower()) if isinstance(status, str) else None
        if kind is None:
            raise ParseError("bad_call", text)
        return Action(kind)
    if name in ("triple_click", "tripleClick"):
        point = _point(positional, named)
        if point is not None:
            return Action("left_triple", start=point)
    raise ParseError("bad_call", text)


def _point(positional: list[Any], named: dict[str, Any]) -> Point | None:
    """The first two arguments, or ``x`` and ``y``; None unless they are two numbers of a screen's size."""
    point = [*positional[:2], *(named[name] for name in ("x", "y") if name in named)]
    numbers = [float(value) for value in point if isinstance(value, int | float) and abs(value) <= MAX_COORDINATE]
    return (numbers[0], numbers[1]) if len(numbers) == len(point) == 2 else None


def _arguments(call: ast.Call, text: str) -> tuple[list[Any], dict[str, Any]]:
    """The constant arguments of a call, without and with names."""
    try:
        if any(keyword.arg is None for keyword in call.keywords):
            raise ParseError("bad_call", text)
        positional = [ast.literal_eval(argument) for argument in call.args]
        return positional, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ParseError("bad_call", text) from error
