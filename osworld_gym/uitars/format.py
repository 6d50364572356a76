"""Formats thought and actions as a response, in the canonical form of training data; ``parse`` is the inverse."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import fields

from osworld_gym.types import Action, Point
from osworld_gym.uitars.actions import ACTIONS, BOX_END, BOX_START

_SPECS = {spec.name: spec for spec in ACTIONS}
_ESCAPES = {"\\": "\\\\", "'": "\\'", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MARKER_LINE = re.compile(r"\n\s*(?=Action[ \t]*[:：])")
_PLAIN_BOX = re.compile(r"\b(start_box|end_box)=(['\"])(\([0-9., ]+\))\2")


def format_point(point: Point) -> str:
    """``<|box_start|>(72,40)<|box_end|>``: integers, halves rounded up."""
    return f"{BOX_START}({math.floor(point[0] + 0.5)},{math.floor(point[1] + 0.5)}){BOX_END}"


def add_box_tokens(response: str) -> str:
    """A past response with box tokens around its points, as the model has written it.

    An inference server removes special tokens from its responses, box tokens among them. OSWorld's adapter adds them to
    past responses (``add_box_token``), since the model was trained on prompts that have them.
    """
    thought, marker, calls = response.partition("Action:")
    return thought + marker + _PLAIN_BOX.sub(rf"\1=\2{BOX_START}\3{BOX_END}\2", calls)


def escape(text: str) -> str:
    """Escapes text for a single-quoted argument of a response."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def describe_action(action: Action) -> str:
    """The action as a call for people to read, also if UI-TARS's text has no form for it. Never raises."""
    try:
        return format_action(action)
    except ValueError:
        given = ((field.name, getattr(action, field.name)) for field in fields(action) if field.name != "kind")
        return f"{action.kind}({', '.join(f'{name}={value!r}' for name, value in given if value is not None)})"


def format_action(action: Action) -> str:
    r"""One action as a call, e.g. ``type(content='it\'s')``; points in the model's pixels.

    Raises:
        ValueError: an unknown action kind, a required argument is None, or a number of wheel clicks.
    """
    spec = _SPECS.get(action.kind)
    if action.clicks is not None:
        raise ValueError(f"{action.kind} has no number of wheel clicks in UI-TARS's text, got {action.clicks}")
    if spec is None:
        raise ValueError(f"unknown action {action.kind!r}; known: {', '.join(_SPECS)}")
    parts = []
    for argument in spec.arguments:
        value = getattr(action, argument.field)
        if value is None:
            if argument.required:
                raise ValueError(f"{action.kind} requires {argument.name}, got {action}")
            continue
        text = format_point(value) if argument.kind == "box" else escape(value)
        parts.append(f"{argument.name}='{text}'")
    return f"{action.kind}({', '.join(parts)})"


def format_response(thought: str, actions: Sequence[Action]) -> str:
    """The complete response. Actions are separated by an empty line, where OSWorld's UI-TARS adapter splits them.

    A line of the thought that starts with ``Action:`` is joined to the previous line, because the parser would read the
    actions from there.

    Raises:
        ValueError: there is no action, or as :func:`format_action`.
    """
    if not actions:
        raise ValueError("format_response requires at least one action, got none")
    calls = "\n\n".join(format_action(action) for action in actions)
    clean = _MARKER_LINE.sub(" ", thought.strip())
    return f"Thought: {clean}\nAction: {calls}" if clean else f"Action: {calls}"
