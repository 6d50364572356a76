"""Qwen3-VL as an :class:`~osworld_gym.action_text.base.ActionText`."""

from __future__ import annotations

from osworld_gym.action_text.base import ActionText
from osworld_gym.qwen3vl import PRESETS, build_messages, format_response, parse, thought_of
from osworld_gym.qwen3vl.prompt import system_text

QWEN3VL = ActionText(
    build_messages=build_messages,
    parse=parse,
    thought_of=thought_of,
    format_response=format_response,
    presets=PRESETS,
    head=lambda _: system_text(),
    unprompted=frozenset(("keydown", "keyup")),
    repeated=None,  # steps without a screenshot are a shorter line, which is not counted
)
