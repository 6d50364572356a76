"""Family: what differs between the runners that write OSWorld's run folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bepa_torchrl.experts.agent_s2_text import split_sentences
from bepa_torchrl.experts.readers.log import Attempt, Line
from osworld_gym.types import Point


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one step; empty where the log has none.

    Args:
        plan: the reasoning.
        intent: what the step does, in one sentence.
        call: the tool-level call.
        subtask: the manager's subtask.
        reflection: the reflection on the step before, or None.
        response: the whole text of a runner other than Agent S2's, or None.
    """

    plan: str = ""
    intent: str = ""
    call: str = ""
    subtask: str = ""
    reflection: str | None = None
    response: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One run, by which a family is recognised, and the settings of ``args.json`` (empty if there is none)."""

    attempt: Attempt
    args: Mapping[str, Any]

    @property
    def lines(self) -> list[Line]:
        """The lines with an action."""
        return [line for step in self.attempt.steps for line in step]

    @property
    def model(self) -> str:
        """The model's name in lower case, or an empty text."""
        return str(self.args.get("model") or "").lower()

    def any(self, *keys: str) -> bool:
        """Whether a line has one of these keys."""
        return any(key in line for line in self.lines for key in keys)

    @property
    def responses(self) -> list[Any]:
        """The responses that are not empty."""
        return [line["response"] for line in self.lines if line.get("response")]

    def says(self, *parts: str) -> bool:
        """Whether one response is a text with all of these parts."""
        return any(isinstance(text, str) and all(part in text for part in parts) for text in self.responses)


@dataclass(frozen=True, slots=True)
class Family:
    """One runner family.

    Args:
        name: the name in ``NAME:FOLDER``, which is also the traces' ``expert``.
        title: the runner, for the documentation.
        detect: whether a run is of this family.
        texts: a step's first line → its texts.
        points: a response's text → its points, in the text's units.
        scales: names of :data:`~bepa_torchrl.experts.readers.scale.SCALES`, of which one must fit; empty: the text has
            no coordinates.
        picture: whether a line's screenshot was taken before or after its action.
    """

    name: str
    title: str
    detect: Callable[[Sample], bool]
    texts: Callable[[Line], Texts]
    points: Callable[[str], list[Point]] = lambda _: []
    scales: tuple[str, ...] = ()
    picture: Literal["before", "after"] = "after"


def response_text(line: Line) -> str:
    """The text of a line's response: a text, or the text blocks of a message; empty for anything else."""
    response = line.get("response")
    if isinstance(response, str):
        return response
    if isinstance(response, list):
        return "\n".join(str(part["text"]) for part in response if isinstance(part, dict) and "text" in part)
    return ""


def last_sentence(text: str) -> str:
    """The last sentence of a text, without its full stop."""
    return (split_sentences(text) or [""])[-1].rstrip(".")


def plain_texts(line: Line) -> Texts:
    """The texts of a runner whose response is free text: the last sentence tells the step."""
    text = response_text(line)
    before = text.split("```")[0].strip()
    return Texts(plan=before, intent=last_sentence(before), response=text or None)
