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
from typing import Any

from osworld_gym.errors import ParseError
from osworld_gym.types import Action, Point
from osworld_gym.uitars.parse import MAX_CHARS, MAX_COORDINATE, Parsed
from osworld_gym.uitars.read_pyautogui import from_pyautogui

_HEADING = re.compile(r"^##[ \t]*(Observation|Thought|Action|Code)\b[ \t]*:?[ \t]*$", re.MULTILINE)
_FENCE = "```"
_LANGUAGE = re.compile(r"(?:code|python)\b", re.IGNORECASE)
_COMPUTER = "computer."


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
    parts = sections(text)
    if len(blocks) < 3 or not parts.get("Action"):
        raise ParseError("no_action", text)
    last = blocks[-2] if len(blocks) % 2 else blocks[-3]  # an even number of parts: the last fence is not closed
    code = _LANGUAGE.sub("", last.strip(), count=1) if _LANGUAGE.match(last.strip()) else last
    actions = _actions(code.strip(), text)
    return Parsed(thought_of(text), actions)


def thought_of(text: str) -> str:
    """The thought of any response, also an unparsable one: ``Thought`` and ``Action``. Never raises on a string."""
    parts = sections(text)
    return "\n\n".join(part for part in (parts.get("Thought"), parts.get("Action")) if part)


def sections(text: str) -> dict[str, str]:
    """The sections before the first code block of any text: heading (such as ``Thought``) → text without spaces around.

    A heading's last occurrence counts. Never raises on a string.
    """
    parts = _HEADING.split(text.split(_FENCE)[0])
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _actions(code: str, text: str) -> tuple[Action, ...]:
    if code.startswith(_COMPUTER):
        return (_computer_call(code, text),)
    try:
        actions = tuple(from_pyautogui(code, triple_click=True))
    except ParseError as error:
        raise ParseError(error.reason, text) from error
    if not actions:
        raise ParseError("no_action", text)
    return actions


def _computer_call(code: str, text: str) -> Action:
    """One call of ``computer.*``: its arguments are constants."""
    call = _only_call(code)
    if call is None:
        raise ParseError("bad_call", text)
    name, positional, named = call
    if name == "computer.wait":
        return Action("wait")
    if name == "computer.terminate":
        status = positional[0] if positional else named.get("status")
        kinds = {"success": "finished", "failure": "call_user", "fail": "call_user"}
        kind = kinds.get(status.lower()) if isinstance(status, str) else None
        if kind is None:
            raise ParseError("bad_call", text)
        return Action(kind)
    if name in ("computer.triple_click", "computer.tripleClick"):
        point = _point(positional, named)
        if point is not None:
            return Action("left_triple", start=point)
    raise ParseError("bad_call", text)


def _point(positional: list[Any], named: dict[str, Any]) -> Point | None:
    """The first two arguments, or ``x`` and ``y``; None unless they are two numbers of a screen's size."""
    point = [*positional[:2], *(named[name] for name in ("x", "y") if name in named)]
    numbers = [float(value) for value in point if isinstance(value, int | float) and abs(value) <= MAX_COORDINATE]
    return (numbers[0], numbers[1]) if len(numbers) == len(point) == 2 else None


def _only_call(code: str) -> tuple[str, list[Any], dict[str, Any]] | None:
    """Name and constant arguments of source that is one call; None if it is anything else."""
    try:
        tree = ast.parse(code, mode="eval").body
        if not isinstance(tree, ast.Call) or any(keyword.arg is None for keyword in tree.keywords):
            return None
        positional = [ast.literal_eval(argument) for argument in tree.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
        return ast.unparse(tree.func), positional, named
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
