"""ActionText: how the prompts of a policy are written, and how its responses are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from osworld_gym.types import Action, PromptContext
from osworld_gym.uitars.parse import Parsed


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
