"""UI-TARS: ``Thought: ... Action: click(start_box='(x,y)')``, in pixels of the resized picture or in thousandths.

The thousandths are those of UI-TARS 1.0, and of OSWorld's second runner of 1.5 with its default model type (Doubao).
"""

from __future__ import annotations

import re

from bepa_torchrl.experts.readers.family import Family, Texts, last_sentence, response_text
from bepa_torchrl.experts.readers.log import Line
from osworld_gym.errors import ParseError
from osworld_gym.types import Point
from osworld_gym.uitars.parse import parse, thought_of

_CALLS = re.compile(r"^[ \t]*Action[ \t]*[:：](.*)\Z", re.MULTILINE | re.DOTALL)
_CALL = re.compile(r"^\s*Action[ \t]*[:：]\s*\w+\s*\(", re.MULTILINE)


def ui_tars_texts(line: Line) -> Texts:
    """The thought is the reasoning, and its last sentence tells the step."""
    text = response_text(line)
    thought, calls = thought_of(text), _CALLS.search(text)
    return Texts(thought, last_sentence(thought), calls[1].strip() if calls else "", response=text or None)


def ui_tars_points(text: str) -> list[Point]:
    """The points of the response's actions. Never raises on a string."""
    try:
        actions = parse(text).actions
    except ParseError:
        return []
    return [point for action in actions for point in (action.start, action.end) if point is not None]


UI_TARS = Family(
    name="ui_tars",
    title="UI-TARS 1.0 and 1.5",
    detect=lambda sample: any(isinstance(text, str) and _CALL.search(text) for text in sample.responses),
    texts=ui_tars_texts,
    points=ui_tars_points,
    scales=("resized pixels", "thousandths"),
)
