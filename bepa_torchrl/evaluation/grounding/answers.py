"""Reads a policy's answer to a grounding item or a question, in the policy's own scale. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from osworld_gym.action_text.base import ActionText
from osworld_gym.errors import ParseError
from osworld_gym.types import Point
from osworld_gym.uitars.coords import ImageScaling


class NoPoint(StrEnum):
    """An answer without a point."""

    refusal = "refusal"  #: the policy says that the element is not there, or that it cannot act
    wrong_format = "wrong_format"  #: the response cannot be read, or names no point


#: actions by which a policy gives up; ``finished`` without a point is read as such, too
_REFUSALS = ("call_user", "finished")


def answered_point(
    response: str, action_text: ActionText, scaling: ImageScaling, size: tuple[int, int]
) -> Point | NoPoint:
    """The point that a response names, in pixels of the image.

    Args:
        response: the response of the policy.
        action_text: the policy's, which reads it.
        scaling: how its coordinates relate to the image: pixels of the resized image, or fractions such as 0-1000.
        size: the size of the image, (width, height).
    """
    try:
        actions = action_text.parse(response).actions
    except ParseError:
        return NoPoint.wrong_format
    for action in actions:
        if action.start is not None:
            return scaling.to_screen(action.start, size)
    return NoPoint.refusal if any(action.kind in _REFUSALS for action in actions) else NoPoint.wrong_format


#: the forms of MMBench-GUI's L1 answers; the first that occurs is taken. Small letters count where they cannot be words
_LETTERS = (
    re.compile(r"\A\s*\(?([A-Fa-f])\)?\s*(?:[.:]|\Z)"),
    re.compile(r"(?:^|\s)\(?([A-F])\)?[.:]"),
    re.compile(r"\b[Oo]ption\s+\(?([A-Fa-f])\b"),
    re.compile(r"\b[Aa]nswer\s*[:：]\s*\(?([A-Fa-f])\b"),
    re.compile(r"\b[Aa]nswer\s*(?:is)?\s*\(?([A-F])\b"),
    re.compile(r"^\s*([A-F])\b", re.MULTILINE),
    re.compile(r"[\"'`]([A-F])[\"'`]"),
    re.compile(r"\b([A-F])\b"),
)


def answered_letter(response: str, letters: Sequence[str]) -> str | None:
    """The option that a response names; None if it names none of ``letters``."""
    for pattern in _LETTERS:
        match = pattern.search(response)
        if match is not None:
            letter = match.group(1).upper()
            return letter if letter in letters else None
    return None
