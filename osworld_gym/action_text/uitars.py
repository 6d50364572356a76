"""UI-TARS as an :class:`~osworld_gym.action_text.base.ActionText`."""

from __future__ import annotations

from osworld_gym.action_text.base import ActionText
from osworld_gym.uitars import PRESETS, build_messages, format_response, parse, thought_of
from osworld_gym.uitars.actions import ACTIONS
from osworld_gym.uitars.prompt import preset_text

UITARS = ActionText(
    build_messages=build_messages,
    parse=parse,
    thought_of=thought_of,
    format_response=format_response,
    presets=PRESETS,
    head=preset_text,
    unprompted=frozenset(spec.name for spec in ACTIONS if not spec.prompted),
    repeated=None,
)
