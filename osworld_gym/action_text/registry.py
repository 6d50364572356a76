"""The text protocols of policies by name: how prompts are written, and how responses are read.

``uitars`` (:mod:`osworld_gym.uitars`), ``opencua`` (:mod:`osworld_gym.opencua`) and ``qwen3vl``
(:mod:`osworld_gym.qwen3vl`) are read as the same :class:`osworld_gym.types.Action`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osworld_gym import opencua, qwen3vl, uitars
from osworld_gym.extensions import Registry
from osworld_gym.opencua import prompt as opencua_prompt
from osworld_gym.qwen3vl import prompt as qwen3vl_prompt
from osworld_gym.types import Action, PromptContext
from osworld_gym.uitars.actions import ACTIONS
from osworld_gym.uitars.parse import Parsed
from osworld_gym.uitars.prompt import preset_text


class MessageBuilder(Protocol):
    """Writes the chat messages of one step."""

    def __call__(
        self, context: PromptContext, *, preset: str, history: str, history_images: int | None
    ) -> list[dict[str, Any]]:
        """Messages whose image parts reference the context's PNG bytes.

        Args:
            context: the episode so far.
            preset: one of the protocol's presets.
            history: one of :data:`osworld_gym.uitars.history.HISTORIES`.
            history_images: k of that module; None with ``all``.

        Raises:
            ValueError: an unknown preset or history, or a context whose parts do not belong together.
        """
        ...


@dataclass(frozen=True, slots=True)
class ActionText:
    """One protocol.

    Args:
        build_messages: the function that writes the prompt of a turn.
        parse: reads a response; its only exception is :class:`osworld_gym.ParseError`.
        thought_of: the thought of any response, also of one that cannot be parsed; never raises on a string.
        format_response: writes a response with this thought and these actions, points in the model's coordinates;
            ValueError if it has no form for them.
        presets: names of its prompts.
        head: preset → the text before the task, of which a plan estimates the tokens.
        unprompted: kinds of actions that are read and written, but that its prompts do not list.
        repeated: estimated tokens of a past response in later prompts; None: it is repeated token for token, so that
            each prompt extends the one before.
    """

    build_messages: MessageBuilder
    parse: Callable[[str], Parsed]
    thought_of: Callable[[str], str]
    format_response: Callable[[str, Sequence[Action]], str]
    presets: tuple[str, ...]
    head: Callable[[str], str]
    unprompted: frozenset[str]
    repeated: int | None


#: name → protocol
ACTION_TEXTS: Registry[ActionText] = Registry(
    "osworld_gym.action_texts",
    {
        "uitars": ActionText(
            build_messages=uitars.build_messages,
            parse=uitars.parse,
            thought_of=uitars.thought_of,
            format_response=uitars.format_response,
            presets=uitars.PRESETS,
            head=preset_text,
            unprompted=frozenset(spec.name for spec in ACTIONS if not spec.prompted),
            repeated=None,
        ),
        "opencua": ActionText(
            build_messages=opencua.build_messages,
            parse=opencua.parse,
            thought_of=opencua.thought_of,
            format_response=opencua.format_response,
            presets=opencua.PRESETS,
            head=lambda _: opencua_prompt.system_text(),
            unprompted=frozenset(),
            repeated=60,  # "# Step 7:", "## Action:" and one or two sentences
        ),
        "qwen3vl": ActionText(
            build_messages=qwen3vl.build_messages,
            parse=qwen3vl.parse,
            thought_of=qwen3vl.thought_of,
            format_response=qwen3vl.format_response,
            presets=qwen3vl.PRESETS,
            head=lambda _: qwen3vl_prompt.system_text(),
            unprompted=frozenset(("keydown", "keyup")),
            repeated=None,  # steps without a screenshot are a shorter line, which is not counted
        ),
    },
    expects="an ActionText",
    accepts=lambda found: isinstance(found, ActionText),
)


def action_text(name: str) -> ActionText:
    """The protocol of that name.

    Raises:
        ValueError: an unknown name.
    """
    if name not in ACTION_TEXTS:
        raise ValueError(f"action_text: expected one of {', '.join(ACTION_TEXTS)}; got {name!r}")
    return ACTION_TEXTS[name]


def check_preset(name: str, preset: str) -> None:
    """Checks that a protocol has a preset.

    Raises:
        ValueError: an unknown protocol, or a preset that is not its own.
    """
    known = action_text(name).presets
    if preset not in known:
        raise ValueError(f"action_text={name} has the presets {', '.join(known)}; got preset={preset!r}")
