"""Prompts of Qwen3-VL models: chat messages of one step, as in OSWorld's ``mm_agents/qwen3vl_agent.py``.

The task comes after the oldest screenshot that is shown, with a line about each step before it. Later steps are
screenshot and response word for word: as long as the oldest screenshot stays, each prompt extends the one before it.
"""

from __future__ import annotations

from typing import Any

from osworld_gym.qwen3vl.parse import action_line
from osworld_gym.types import PromptContext
from osworld_gym.uitars.history import first_image
from osworld_gym.uitars.prompt import instruction_text, prompt_text

Message = dict[str, Any]  #: {"role": str, "content": list of {"type": "text"|"image", ...}}

PRESETS = ("official",)
_REQUEST = "\nPlease generate the next move according to the UI screenshot, instruction and previous actions.\n\n"


def system_text() -> str:
    """The system prompt, with the tool's definition."""
    return prompt_text("system", "osworld_gym.qwen3vl")


def build_messages(
    context: PromptContext, *, preset: str = "official", history: str = "last_k", history_images: int | None = 5
) -> list[Message]:
    """Chat messages for one step. Image parts reference the context's PNG bytes without copying.

    If the context has the token ids of past responses, the text part of a response has them as ``tokens``, as in
    :func:`osworld_gym.uitars.prompt.build_messages`.

    Args:
        context: the episode so far.
        preset: ``official``.
        history: one of :data:`osworld_gym.uitars.history.HISTORIES`; OSWorld's agent has ``last_k``, with 5 images.
        history_images: k of that module, the current screenshot included; None with ``all``.

    Raises:
        ValueError: an unknown preset or history, or a context whose number of screenshots is not that of the responses
            plus 1, or that has token ids of some responses only.
    """
    past = len(context.responses)
    if len(context.screenshots) != past + 1:
        raise ValueError(
            f"a prompt requires one screenshot more than responses, got {len(context.screenshots)} and {past}"
        )
    if len(context.response_tokens) not in (0, past):
        raise ValueError(
            f"token ids are required of all {past} responses or of none, got {len(context.response_tokens)}"
        )
    if preset not in PRESETS:
        raise ValueError(f"unknown prompt preset {preset!r}; known: {', '.join(PRESETS)}")
    first = first_image(len(context.screenshots), history, history_images)
    messages = [_message("system", _text(system_text()))]
    for step, screenshot in enumerate(context.screenshots[first:], first):
        task = [_text(_task(context, first))] if step == first else []
        messages.append(_message("user", {"type": "image", "image": screenshot}, *task))
        if step < past:
            response = _text(context.responses[step])
            if context.response_tokens:
                response["tokens"] = context.response_tokens[step]
            messages.append(_message("assistant", response))
    return messages


def _task(context: PromptContext, first: int) -> str:
    """The request with the instruction, and a line about each step before the first one that is shown."""
    steps = [f"Step {number}: {action_line(text)}" for number, text in enumerate(context.responses[:first], 1)]
    before = "\n".join(steps) or "None"
    return f"{_REQUEST}Instruction: {instruction_text(context)}\n\nPrevious actions:\n{before}"


def _message(role: str, *parts: dict[str, Any]) -> Message:
    return {"role": role, "content": list(parts)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
