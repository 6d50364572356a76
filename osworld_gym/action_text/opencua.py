"""OpenCUA as an :class:`~osworld_gym.action_text.base.ActionText`."""

from __future__ import annotations

from osworld_gym.action_text.base import ActionText
from osworld_gym.opencua import PRESETS, build_messages, format_response, parse, thought_of
from osworld_gym.opencua.prompt import system_text

OPENCUA = ActionText(
    build_messages=build_messages,
    parse=parse,
    thought_of=thought_of,
    format_response=format_response,
    presets=PRESETS,
    head=lambda _: system_text(),
    unprompted=frozenset(),
    repeated=60,  # "# Step 7:", "## Action:" and one or two sentences
)
