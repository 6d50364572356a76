"""Reads logs of OSWorld's runner for GUI-Owl as ExpertTraces.

The layout is that of :mod:`bepa_torchrl.experts.readers.run_folder`; ``response`` is a string
``<thinking>…</thinking><tool_call>{"name": …, "arguments": {…}}</tool_call><conclusion>…``.
Coordinates are pixels of Qwen's resized image, 1932×1092 for a 1920×1080 screen, as in OSWorld's adapter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.run_folder import read_runs, value_of
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, Point
from osworld_gym.uitars.coords import ImageScaling
from osworld_gym.uitars.keys import key_name
from osworld_gym.uitars.pyautogui import to_pyautogui

_TAG = "<{0}>(.*?)(?:</{0}>|$)"
_POINTED = {
    "click": "click",
    "left_click": "click",
    "double_click": "left_double",
    "right_click": "right_single",
}
_WORDS = {"finished": "DONE", "call_user": "FAIL", "wait": "WAIT"}


def read_gui_owl(folder: Path, tasks: Iterable[Task]) -> list[ExpertTrace]:
    """All GUI-Owl runs below ``folder`` whose task is in ``tasks``, by task id, including failed runs.

    Raises:
        TraceError: no run of these tasks, or a file is missing, invalid, or lacks a key; the message names it.
    """
    return read_runs(folder, tasks, "gui_owl", _step)


def _step(line: Mapping[str, Any], size: tuple[int, int], where: str) -> ExpertStep:
    text = value_of(line, "response", str, where)
    try:
        return owl_step(text, size, str(line.get("action") or ""))
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from error


def owl_step(text: str, screen_size: tuple[int, int], executed: str) -> ExpertStep:
    """Parses one response; ``executed`` is the code that the adapter ran, used if the action table has no entry.

    Raises:
        ValueError: no tool call, or it lacks an argument of its action.
    """
    arguments = _arguments(text)
    thinking, conclusion = _tagged(text, "thinking"), _tagged(text, "conclusion")
    try:
        actions = owl_actions(arguments, screen_size)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"tool call lacks an argument of its action ({error!r}): {json.dumps(arguments)}") from error
    source = executed
    if actions:
        source = _WORDS.get(actions[0].kind) or to_pyautogui(actions)
    intent = conclusion or thinking.split("\n")[-1]
    return ExpertStep(
        subtask="",
        plan=thinking,
        reflection=None,
        call=json.dumps(arguments, ensure_ascii=False),
        pyautogui=source,
        intent=" ".join(intent.split()).rstrip("."),
        actions=actions,
    )


def owl_actions(arguments: Mapping[str, Any], screen_size: tuple[int, int]) -> tuple[Action, ...]:
    """The tool call's actions in screen pixels; () for calls without an action in the table (a pointer move)."""
    name = arguments["action"]
    if name in _POINTED:
        return (Action(_POINTED[name], start=_point(arguments["coordinate"], screen_size)),)
    if name in ("drag", "left_click_drag"):
        start, end = _point(arguments["coordinate"], screen_size), _point(arguments["coordinate2"], screen_size)
        return (Action("drag", start=start, end=end),)
    if name == "key":
        return (Action("hotkey", key=" ".join(key_name(str(key)) for key in arguments["keys"])),)
    if name == "type":
        clear = (Action("hotkey", key="ctrl a"), Action("hotkey", key="backspace")) if arguments.get("clear") else ()
        return (*clear, Action("type", content=arguments["text"] + ("\n" if arguments.get("enter") else "")))
    if name == "scroll":
        at = _point(arguments["coordinate"], screen_size) if arguments.get("coordinate") else None
        return (Action("scroll", start=at, direction="up" if float(arguments["pixels"]) > 0 else "down"),)
    if name == "wait":
        return (Action("wait"),)
    if name == "terminate":
        return (Action("finished" if arguments.get("status") == "success" else "call_user"),)
    return ()


def _point(pair: Any, screen_size: tuple[int, int]) -> Point:
    return ImageScaling().to_screen((float(pair[0]), float(pair[1])), screen_size)


def _tagged(text: str, tag: str) -> str:
    match = re.search(_TAG.format(tag), text, re.DOTALL)
    return match[1].strip() if match else ""


def _arguments(text: str) -> dict[str, Any]:
    call = _tagged(text, "tool_call")
    try:
        arguments = json.loads(call)["arguments"]
        arguments["action"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"expected a <tool_call> with arguments.action, got {call[:200]!r}") from error
    return dict(arguments)
