"""Builds prompts: task, plan, past responses and screenshots → chat messages. The texts are in ``prompts/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from osworld_gym.types import PromptContext
from osworld_gym.uitars.actions import action_space_text
from osworld_gym.uitars.history import first_image
from osworld_gym.uitars.parse import thought_of

Message = dict[str, Any]  #: {"role": str, "content": list of {"type": "text"|"image", ...}}


@lru_cache(maxsize=32)
def prompt_text(name: str, package: str = "osworld_gym.uitars") -> str:
    """The text of ``prompts/<name>.txt`` in ``package``, unchanged.

    Raises:
        FileNotFoundError: there is no such file.
    """
    return resources.files(package).joinpath("prompts", f"{name}.txt").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class ChatPreset:
    """A prompt in the official format: the prompt text, then alternating screenshots and responses.

    Args:
        role: role of the prompt text, ``system`` or ``user``.
        system: a system message before it, or None.
        template: the prompt text, with the placeholder ``{instruction}``.
    """

    role: str
    system: str | None
    template: str


def _official(action_space: str, language: str) -> ChatPreset:
    text = prompt_text("official").replace("{language}", language).replace("{action_space}", action_space)
    return ChatPreset("user", "You are a helpful assistant.", text)


def _presets() -> Mapping[str, ChatPreset]:
    official_space = prompt_text("official_action_space")
    return MappingProxyType(
        {
            "paper": ChatPreset("system", None, prompt_text("paper")),
            "official": _official(official_space, "English"),
            "official_chinese": _official(official_space, "Chinese"),
            "table": _official(action_space_text("desktop"), "English"),
            "mobile": _official(action_space_text("mobile"), "English"),
            "grounding": ChatPreset("user", "You are a helpful assistant.", prompt_text("grounding")),
            "plain": ChatPreset("user", None, "{instruction}"),
        }
    )


#: presets in the official format; ``compact`` has another one (``_compact``)
CHAT_PRESETS = _presets()
PRESETS = (*CHAT_PRESETS, "compact")


def preset_text(preset: str) -> str:
    """The text of a preset before the first screenshot, with the placeholder ``{instruction}``; "" for ``compact``."""
    chat = CHAT_PRESETS.get(preset)
    return "" if chat is None else (chat.system or "") + chat.template


def instruction_text(context: PromptContext) -> str:
    """The instruction, followed by an empty line and the plan if there is one (LEVEL-1)."""
    return f"{context.instruction}\n\n{context.plan}" if context.plan else context.instruction


def build_messages(
    context: PromptContext, *, preset: str = "paper", history: str = "all", history_images: int | None = None
) -> list[Message]:
    """Chat messages for one step. Image parts reference the context's PNG bytes without copying.

    ``paper``, ``official``, ``official_chinese``, ``table`` (the official text with the action space of our table),
    ``mobile``, ``grounding`` (a single click) and ``plain`` (the instruction alone) have all past responses and
    the screenshots that ``history`` and ``history_images`` select (:mod:`osworld_gym.uitars.history`). ``compact``
    (ours, for the tiny model) has one user message with the current screenshot, the instruction and the last thought,
    whatever the history.

    If the context has the token ids of past responses, the text part of a response has them as ``tokens``: a policy
    that renders them extends its last prompt and response token for token.

    Raises:
        ValueError: an unknown preset or history, or a context whose number of screenshots is not that
            of the responses plus 1, or that has token ids of some responses only.
    """
    images, past = len(context.screenshots), len(context.responses)
    first = first_image(images, history, history_images)
    if images != past + 1:
        raise ValueError(f"a prompt requires one screenshot more than responses, got {images} and {past}")
    if len(context.response_tokens) not in (0, past):
        raise ValueError(
            f"token ids are required of all {past} responses or of none, got {len(context.response_tokens)}"
        )
    if preset == "compact":
        return [_compact(context)]
    if preset not in CHAT_PRESETS:
        raise ValueError(f"unknown prompt preset {preset!r}; known: {', '.join(PRESETS)}")
    return _chat(context, CHAT_PRESETS[preset], first)


def _compact(context: PromptContext) -> Message:
    last = thought_of(context.responses[-1]) if context.responses else ""
    words = f"{instruction_text(context)}\nLast: {last or 'none'}"
    return {"role": "user", "content": [_image(context.screenshots[-1]), _text(words)]}


def _chat(context: PromptContext, preset: ChatPreset, first: int) -> list[Message]:
    words = preset.template.replace("{instruction}", instruction_text(context))
    messages: list[Message] = []
    if preset.system is not None:
        messages.append({"role": "system", "content": [_text(preset.system)]})
    messages.append({"role": preset.role, "content": [_text(words)]})
    for step, screenshot in enumerate(context.screenshots):
        if step >= first:
            messages.append({"role": "user", "content": [_image(screenshot)]})
        if step < len(context.responses):
            response = _text(context.responses[step])
            if context.response_tokens:
                response["tokens"] = context.response_tokens[step]
            messages.append({"role": "assistant", "content": [response]})
    return messages


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(png: bytes) -> dict[str, Any]:
    return {"type": "image", "image": png}
