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
from osworld_gym.uitars.read_pyautogui import SCROLL_CLICKS

_FENCE = "```"
_TYPED = {"enter": "\n", "tab": "\t"}  # keys that are characters
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*")
# a response's own marks: fences, then the start of headings
_FENCES = re.compile("`{3,}")
_HEADINGS = re.compile(r"^(?:[ \t]*#)+[ \t]*", re.MULTILINE)


def format_response(thought: str, actions: Sequence[Action]) -> str:
    """The complete response: ``## Thought:`` unless it is empty, ``## Action:``, and the code. Points are rounded.

    Raises:
        ValueError: there is no action, or the actions have no form in one code block: ``keydown`` and ``keyup``, a wait
            or an end together with others, and actions of mobile devices.
    """
    if not actions:
        raise ValueError("format_response requires at least one action, got none")
    clean = _HEADINGS.sub("", _FENCES.sub("", thought).strip()).strip()
    sentence = [part for part in _SENTENCE_END.split(" ".join(clean.split())) if part.strip("# ")][-1:]
    names = ", then ".join(action.kind.replace("_", " ") for action in actions) + "."
    words = sentence[0].lstrip("# ") if sentence else names
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
        reread = parse(text).actions
    except ParseError:
        return False
    return _normal(reread) == _normal(actions)


def _normal(actions: Sequence[Action]) -> list[Action]:
    """The actions with rounded points and pyautogui's key names; text typed in several actions is joined.

    A hotkey of enter or tab alone is that character typed, and a scroll by 10 wheel clicks two scrolls, which perform
    the same.
    """
    joined: list[Action] = []
    for action in actions:
        key = None if action.key is None else " ".join(split_keys(action.key))
        text = _TYPED.get(key or "") if action.kind == "hotkey" else action.content
        if action.kind in ("type", "hotkey") and text is not None:
            before = joined.pop().content or "" if joined and joined[-1].kind == "type" else ""
            joined += [Action("type", content=before + text)] if before + text else []
            continue
        if action.kind == "scroll" and action.clicks and action.clicks % SCROLL_CLICKS == 0:
            joined += [replace(action, start=_rounded(action.start), clicks=None)] * (action.clicks // SCROLL_CLICKS)
            continue
        start, end = _rounded(action.start), _rounded(action.end)
        joined.append(replace(action, start=start, end=end, key=key))
    return [replace(action, content=None) if action.kind == "finished" else action for action in joined]


def _literal(text: str) -> str:
    """The text as a literal of Python that cannot close the code block."""
    return repr(text).replace(_FENCE, "\\x60" * len(_FENCE))


def _round(point: Point) -> Point:
    return math.floor(point[0] + 0.5), math.floor(point[1] + 0.5)


def _rounded(point: Point | None) -> Point | None:
    return None if point is None else _round(point)


def _xy(point: Point | None) -> str:
    if point is None:
        raise ValueError("this action requires a point, got None")
    x, y = _round(point)
    return f"x={x}, y={y}"


def _scroll(action: Action) -> list[str]:
    call = "scroll" if action.direction in ("up", "down") else "hscroll"
    clicks = SCROLL_CLICKS if action.clicks is None else action.clicks
    clicks = clicks if action.direction in ("up", "right") else -clicks
    move = [] if action.start is None else [f"pyautogui.moveTo({_xy(action.start)})"]
    return [*move, f"pyautogui.{call}({clicks})"]


def _type(action: Action) -> list[str]:
    """The text in lines, with the enter key between them."""
    lines: list[str] = []
    for number, piece in enumerate((action.content or "").split("\n")):
        lines += ["pyautogui.press('enter')"] if number else []
        lines += [f"pyautogui.write(message={_literal(piece)})"] if piece else []
    return lines


_WRITERS: dict[str, Callable[[Action], list[str]]] = {
    "click": lambda a: [f"pyautogui.click({_xy(a.start)})"],
    "left_double": lambda a: [f"pyautogui.doubleClick({_xy(a.start)})"],
    "left_triple": lambda a: [f"computer.triple_click({_xy(a.start)})"],
    "right_single": lambda a: [f"pyautogui.rightClick({_xy(a.start)})"],
    "middle_single": lambda a: [f"pyautogui.middleClick({_xy(a.start)})"],
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
