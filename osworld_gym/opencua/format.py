"""Formats thought and actions as a response of OpenCUA's form; ``parse`` is the inverse.

OpenCUA's own responses have a sentence about the target in the section ``Action``, which later prompts repeat. Here it
is the thought's last sentence, or the names of the actions if there is no thought.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from osworld_gym.errors import ParseError
from osworld_gym.opencua.parse import parse
from osworld_gym.types import Action, Point
from osworld_gym.uitars.keys import split_keys

SCROLL_CLICKS = 5  #: wheel clicks of one scroll, as :mod:`osworld_gym.uitars.read_pyautogui` counts them
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")
_MARKUP = re.compile(r"^#+[ \t]*|`{3,}", re.MULTILINE)  # of the response: headings and the code block


def format_response(thought: str, actions: Sequence[Action]) -> str:
    """The complete response: ``## Thought:`` unless it is empty, ``## Action:``, and the code. Points are rounded.

    Raises:
        ValueError: there is no action, or the actions have no form in one code block: ``keydown`` and ``keyup``, a wait
            or an end together with others, and actions of mobile devices.
    """
    if not actions:
        raise ValueError("format_response requires at least one action, got none")
    clean = _MARKUP.sub("", thought).strip()
    sentence = [part for part in _SENTENCE_END.split(" ".join(clean.split())) if part][-1:]
    words = sentence[0] if sentence else ", then ".join(action.kind.replace("_", " ") for action in actions) + "."
    unknown = [action.kind for action in actions if action.kind not in _WRITERS]
    if unknown:
        raise ValueError(f"OpenCUA's text has no form of {unknown[0]}; it has {', '.join(_WRITERS)}")
    code = "\n".join(line for action in actions for line in _WRITERS[action.kind](action))
    head = f"## Thought:\n{clean}\n\n" if clean else ""
    text = f"{head}## Action:\n{words}\n\n## Code:\n```python\n{code}\n```\n"
    if not _same(text, actions):
        raise ValueError(f"these actions have no form in one code block: {', '.join(a.kind for a in actions)}")
    return text


def _same(text: str, actions: Sequence[Action]) -> bool:
    """Whether the response has these actions, with rounded points."""
    try:
        found = parse(text).actions
    except ParseError:
        return False
    return _normal(found) == _normal(actions)


def _normal(actions: Sequence[Action]) -> list[Action]:
    """The actions with rounded points and pyautogui's key names; text typed in several actions is joined."""
    found: list[Action] = []
    for action in actions:
        if action.kind == "type" and found and found[-1].kind == "type":
            found[-1] = replace(found[-1], content=(found[-1].content or "") + (action.content or ""))
            continue
        start, end = (None if point is None else _round(point) for point in (action.start, action.end))
        key = None if action.key is None else " ".join(split_keys(action.key))
        found.append(replace(action, start=start, end=end, key=key))
    return [replace(action, content=None) if action.kind == "finished" else action for action in found]


def _round(point: Point) -> Point:
    return math.floor(point[0] + 0.5), math.floor(point[1] + 0.5)


def _xy(point: Point | None) -> str:
    if point is None:
        raise ValueError("this action requires a point, got None")
    x, y = _round(point)
    return f"x={x}, y={y}"


def _scroll(action: Action) -> list[str]:
    call = "scroll" if action.direction in ("up", "down") else "hscroll"
    clicks = SCROLL_CLICKS if action.direction in ("up", "right") else -SCROLL_CLICKS
    move = [] if action.start is None else [f"pyautogui.moveTo({_xy(action.start)})"]
    return [*move, f"pyautogui.{call}({clicks})"]


def _type(action: Action) -> list[str]:
    """The text in lines, with the enter key between them."""
    lines: list[str] = []
    for number, piece in enumerate((action.content or "").split("\n")):
        lines += ["pyautogui.press('enter')"] if number else []
        lines += [f"pyautogui.write(message={piece!r})"] if piece else []
    return lines


_WRITERS: dict[str, Callable[[Action], list[str]]] = {
    "click": lambda a: [f"pyautogui.click({_xy(a.start)})"],
    "left_double": lambda a: [f"pyautogui.doubleClick({_xy(a.start)})"],
    "left_triple": lambda a: [f"computer.triple_click({_xy(a.start)})"],
    "right_single": lambda a: [f"pyautogui.rightClick({_xy(a.start)})"],
    "hover": lambda a: [f"pyautogui.moveTo({_xy(a.start)})"],
    "drag": lambda a: [
        f"pyautogui.moveTo({_xy(a.start)})",
        f"pyautogui.dragTo({_xy(a.end)}, button='left')",
    ],
    "hotkey": lambda a: [f"pyautogui.hotkey({list(split_keys(a.key or ''))!r})"],
    "type": _type,
    "scroll": _scroll,
    "wait": lambda _: ["computer.wait()"],
    "finished": lambda _: ["computer.terminate(status='success')"],
    "call_user": lambda _: ["computer.terminate(status='failure')"],
}
