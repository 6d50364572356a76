"""ChatRenderer: contexts to prompts, by an action text (UI-TARS, OpenCUA) and a checkpoint's tokenizer and images."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.checkpoint import load_processor
from bepa_torchrl.policies.transformers.processor import PromptProcessor
from osworld_gym.action_text import action_text as protocol
from osworld_gym.types import PromptContext
from osworld_gym.uitars.coords import RELATIVE_COORDINATES, ImageScaling
from osworld_gym.uitars.history import check_history

PROMPT_TOKENS = 65_536  #: the longest prompt by default, if the model has positions for it


class ChatRenderer:
    """A :class:`bepa_torchrl.policies.base.Renderer` for checkpoints with a chat template; it needs no weights.

    Args:
        processor: the checkpoint's tokenizer, chat template and image processor.
        model_type: the model type of the checkpoint's config; the unit of the model's points depends on it.
        action_text: form of prompts and responses, a name of :data:`osworld_gym.action_text.ACTION_TEXTS`.
        preset: prompt preset of that action text.
        history: which screenshots the prompt contains, ``all``, ``evict_block`` or ``last_k``
            (:mod:`osworld_gym.uitars.history`).
        history_images: k of ``evict_block`` and ``last_k``, which includes the current screenshot; None with ``all``.
        max_prompt_tokens: contexts with longer prompts get None.

    Raises:
        ValueError: an unknown action text or history.
    """

    def __init__(
        self,
        processor: PromptProcessor,
        *,
        model_type: str,
        max_prompt_tokens: int,
        action_text: str = "uitars",
        preset: str = "paper",
        history: str = "all",
        history_images: int | None = None,
    ) -> None:
        check_history(history, history_images)
        self.processor, self.model_type, self.max_prompt_tokens = processor, model_type, max_prompt_tokens
        self.action_text, self.preset = action_text, preset
        self.history, self.history_images = history, history_images
        self._build_messages = protocol(action_text).build_messages

    @property
    def image_scaling(self) -> ImageScaling:
        """The image processor's size limits and the model's coordinates, which map its points to screen pixels."""
        patcher = self.processor.patcher
        relative = RELATIVE_COORDINATES.get(self.model_type)
        return ImageScaling(patcher.factor, patcher.min_pixels, patcher.max_pixels, relative)

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context; None if it has more than ``max_prompt_tokens``."""
        return self.render_messages(
            [
                self._build_messages(
                    context, preset=self.preset, history=self.history, history_images=self.history_images
                )
                for context in contexts
            ]
        )

    def render_messages(self, conversations: Sequence[Sequence[Mapping[str, Any]]]) -> list[Prompt | None]:
        """One prompt per list of chat messages; None if it has more than ``max_prompt_tokens``."""
        prompts = self.processor.render(conversations)
        fitting = [prompt if len(prompt.tokens) <= self.max_prompt_tokens else None for prompt in prompts]
        self.prefetch([image for prompt in fitting if prompt is not None for image in prompt.images])
        return fitting

    def prefetch(self, images: Sequence[bytes]) -> None:
        """Lets threads prepare images of prompts that are sampled soon; any thread may call it."""
        self.processor.patcher.prefetch(images)

    def encode_response(self, text: str) -> Tensor:
        """int64 ``[L]``: tokens of a response text with the end token, for converted expert traces."""
        return self.processor.encode_response(text)

    def decode_responses(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of sampled tokens, without special tokens other than the box tokens."""
        return self.processor.decode_responses(rows)


def load_renderer(
    path_or_id: str | os.PathLike[str], *, max_prompt_tokens: int = PROMPT_TOKENS, **options: Any
) -> ChatRenderer:
    """The renderer of a checkpoint folder or hub name; no weights are loaded.

    Args:
        path_or_id: as of :func:`bepa_torchrl.policies.transformers.checkpoint.load_checkpoint`.
        max_prompt_tokens: contexts with longer prompts get None; at most the model's positions minus its responses.
        options: further arguments of :class:`ChatRenderer`.

    Raises:
        CheckpointError: files are missing, or do not fit a vision-language model.
        ValueError: as of :class:`ChatRenderer`.
    """
    processor, model_type = load_processor(path_or_id)
    return ChatRenderer(processor, model_type=model_type, max_prompt_tokens=max_prompt_tokens, **options)
