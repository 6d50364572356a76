"""GUI-Owl 1.0 and 1.5, Qwen3-VL: a tool call in tags, ``<tool_call>{"arguments": {"coordinate": ...}}</tool_call>``.

The text alone does not tell GUI-Owl 1.0's pixels of a resized picture from the thousandths of the others; the executed
code does.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from bepa_torchrl.experts.readers.family import Family, Sample, Texts, last_sentence, response_text
from bepa_torchrl.experts.readers.log import Line
from bepa_torchrl.experts.trace import parse_json
from osworld_gym.qwen3vl.parse import tagged, thought_of
from osworld_gym.types import Point

_ACTION = re.compile(r"^[ \t]*Action:[ \t]*(.+)$", re.MULTILINE)
_COORDINATES = ("coordinate", "coordinate2", "start_coordinate", "end_coordinate")


def tool_arguments(text: str) -> list[dict[str, Any]]:
    """The arguments of each tool call that is valid JSON. Never raises on a string."""
    arguments = []
    for raw in tagged(text)[1]:
        try:
            call = parse_json(raw)
        except (ValueError, RecursionError):
            continue
        if isinstance(call, dict) and isinstance(call.get("arguments"), dict):
            arguments.append(call["arguments"])
    return arguments


def tool_points(text: str) -> list[Point]:
    """The points of the tool calls, in the text's units. Never raises on a string."""
    points = (_point(arguments.get(key)) for arguments in tool_arguments(text) for key in _COORDINATES)
    return [point for point in points if point is not None]


def _point(pair: Any) -> Point | None:
    if not (isinstance(pair, list) and len(pair) == 2 and all(type(value) in (int, float) for value in pair)):
        return None
    x, y = map(float, pair)
    return (x, y) if math.isfinite(x) and math.isfinite(y) else None


def owl_texts(line: Line) -> Texts:
    """GUI-Owl 1.0: ``<thinking>`` is the reasoning, ``<conclusion>`` tells the step."""
    text = response_text(line)
    thinking, conclusion = _tagged(text, "thinking"), _tagged(text, "conclusion")
    intent = conclusion or last_sentence(thinking)
    return Texts(thinking, " ".join(intent.split()).rstrip("."), _call(text), response=text or None)


def action_texts(line: Line) -> Texts:
    """GUI-Owl 1.5 and Qwen3-VL: ``Action: ...`` tells the step; the label and the tags of thinking are no words."""
    text = response_text(line)
    before = tagged(text)[0].strip()
    named = _ACTION.findall(before)
    intent = named[-1].strip().strip("\"'").rstrip(".") if named else last_sentence(before)
    return Texts(thought_of(text), intent, _call(text), response=text or None)


def tool_call_texts(line: Line) -> Texts:
    """The texts of either form."""
    return owl_texts(line) if "<thinking>" in response_text(line) else action_texts(line)


def _tagged(text: str, tag: str) -> str:
    match = re.search(f"<{tag}>(.*?)(?:</{tag}>|\\Z)", text, re.DOTALL)
    return match[1].strip() if match else ""


def _call(text: str) -> str:
    return "\n".join(json.dumps(arguments, ensure_ascii=False) for arguments in tool_arguments(text))


def _is_owl(sample: Sample) -> bool:
    return sample.says("<tool_call>") and ("owl" in sample.model or not sample.model or sample.says("<thinking>"))


OWL = Family(
    name="gui_owl",
    title="GUI-Owl 1.0",
    detect=lambda sample: _is_owl(sample) and "1.5" not in sample.model,
    texts=tool_call_texts,
    points=tool_points,
    scales=("resized pixels",),
)
OWL_1_5 = Family(
    name="gui_owl_1_5",
    title="GUI-Owl 1.5",
    detect=_is_owl,
    texts=tool_call_texts,
    points=tool_points,
    scales=("thousandths", "0-999"),
)
QWEN3_VL = Family(
    name="qwen3_vl",
    title="Qwen3-VL",
    detect=lambda sample: sample.says("<tool_call>"),
    texts=action_texts,
    points=tool_points,
    scales=("thousandths", "0-999"),
)
