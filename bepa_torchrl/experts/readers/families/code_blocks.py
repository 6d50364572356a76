"""OpenCUA, Kimi and EvoCUA: sections and a code block, or EvoCUA's tool calls; and plain text with a code block."""

from __future__ import annotations

import re

from bepa_torchrl.experts.readers.executed import source_points
from bepa_torchrl.experts.readers.families.tool_calls import action_texts, tool_points
from bepa_torchrl.experts.readers.family import Family, Sample, Texts, last_sentence, plain_texts, response_text
from bepa_torchrl.experts.readers.log import Line
from osworld_gym.opencua.parse import sections
from osworld_gym.types import Point

_CODE = re.compile(r"```(?:python|code)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def code_points(text: str) -> list[Point]:
    """The points of the last code block, in the text's units. Never raises on a string."""
    blocks = _CODE.findall(text)
    return source_points(blocks[-1].strip()) if blocks else []


def section_texts(line: Line) -> Texts:
    """``## Thought`` is the reasoning; ``natural_language_action``, or ``## Action``, tells the step."""
    text = response_text(line)
    if "<tool_call>" in text:
        return action_texts(line)
    parts = sections(text)
    thought = "\n\n".join(part for part in (parts.get("Observation"), parts.get("Thought")) if part)
    said = line.get("natural_language_action")
    intent = said if isinstance(said, str) and said else parts.get("Action", "")
    blocks = _CODE.findall(text)
    call = blocks[-1].strip() if blocks else ""
    return Texts(
        thought or parts.get("Action", ""), last_sentence(intent) or last_sentence(thought), call, response=text or None
    )


def evocua_points(text: str) -> list[Point]:
    """The points of the tool calls, or of the code block."""
    return tool_points(text) or code_points(text)


def _is_opencua(sample: Sample) -> bool:
    return sample.any("natural_language_action") or sample.says("## Action")


EVOCUA = Family(
    name="evocua",
    title="EvoCUA",
    detect=lambda sample: (
        "evocua" in sample.model or (sample.any("natural_language_action") and sample.says("<tool_call>"))
    ),
    texts=section_texts,
    points=evocua_points,
    scales=("thousandths", "0-999"),
)
KIMI = Family(
    name="kimi",
    title="Kimi",
    detect=lambda sample: _is_opencua(sample) and "kimi" in sample.model,
    texts=section_texts,
    points=code_points,
    scales=("fractions", "resized pixels", "screen pixels"),
)
OPENCUA = Family(
    name="opencua",
    title="OpenCUA",
    detect=_is_opencua,
    texts=section_texts,
    points=code_points,
    scales=("resized pixels", "fractions"),
)
GENERIC = Family(
    name="generic",
    title="o3, generic prompt agent",
    detect=lambda sample: any(isinstance(text, str) for text in sample.responses),
    texts=plain_texts,
    points=code_points,
    scales=("screen pixels",),
)
