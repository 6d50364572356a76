"""Tokens of a screenshot, of a turn's prompt and of an episode, in Qwen's chat format.

A prompt is a head (the preset's text and the instruction), then screenshots and past responses in turn. The rows of an
episode, prompt and response of each step, share a forward pass where one begins with another
(:mod:`bepa_torchrl.policies.transformers.scorer`), so an episode has few sequences, with history ``all`` one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bepa_torchrl.sizing.model import VisionShape
from osworld_gym.uitars.coords import smart_resize
from osworld_gym.uitars.history import first_image

#: ``<|im_start|>user\n<|vision_start|>`` … ``<|vision_end|><|im_end|>\n``: 4 tokens before an image, 3 after it
IMAGE_FRAME = 7
#: ``<|im_start|>assistant\n`` before a response
BEFORE_RESPONSE = 3
#: ``\n`` after a past response's ``<|im_end|>``, which counts as part of the response
AFTER_RESPONSE = 1
#: characters of English prompt text per token of Qwen's tokenizer, an estimate on the safe side (usually 4 or more)
CHARACTERS_PER_TOKEN = 3


class Grid(NamedTuple):
    """The patches of one resized image."""

    rows: int
    columns: int

    @property
    def patches(self) -> int:
        """Number of patches."""
        return self.rows * self.columns


class Sequence(NamedTuple):
    """One sequence of a forward pass: its length in tokens, and its images."""

    tokens: int
    images: int


def image_grid(vision: VisionShape, size: tuple[int, int], *, min_pixels: int, max_pixels: int) -> Grid:
    """The patch grid of a screenshot of ``size`` (width, height) in pixels, after the image processor's resizing.

    Raises:
        ValueError: see :func:`osworld_gym.uitars.coords.smart_resize`.
    """
    height, width = smart_resize(size[1], size[0], vision.patch * vision.merge, min_pixels, max_pixels)
    return Grid(height // vision.patch, width // vision.patch)


@dataclass(frozen=True, slots=True)
class EpisodeShape:
    """An episode of ``steps`` turns.

    Args:
        steps: number of turns.
        head: tokens before the first screenshot.
        image: tokens of a screenshot, one per square of merged patches.
        response: tokens of a response, the end token included.
        history: one of :data:`osworld_gym.uitars.history.HISTORIES`.
        images: k of that module; None with ``all``.
        repeated: tokens of a past response in later prompts, if they repeat it in another form, so that no row begins
            with an earlier one (:class:`osworld_gym.action_text.ActionText`); None: token for token.
    """

    steps: int
    head: int
    image: int
    response: int
    history: str
    images: int | None
    repeated: int | None = None

    def kept_images(self, step: int) -> int:
        """Screenshots in the prompt of a step (1, 2, …), the current one included."""
        return step - first_image(step, self.history, self.images)

    def prompt(self, step: int) -> int:
        """Tokens of the prompt of a step (1, 2, …), the generation prompt (:data:`BEFORE_RESPONSE`) included."""
        length = self.response if self.repeated is None else self.repeated
        past = (step - 1) * (BEFORE_RESPONSE + length + AFTER_RESPONSE)
        return self.head + self.kept_images(step) * (IMAGE_FRAME + self.image) + past + BEFORE_RESPONSE

    def row(self, step: int) -> Sequence:
        """Prompt and response of a step, and its images."""
        return Sequence(self.prompt(step) + self.response, self.kept_images(step))

    def rows(self) -> list[Sequence]:
        """All rows: the sequences if none is shared."""
        return [self.row(step) for step in range(1, self.steps + 1)]

    def sequences(self) -> list[Sequence]:
        """The sequences of the episode's forward pass: each row that no later row begins with."""
        return [self.row(step) for step in self._last_steps()]

    def _last_steps(self) -> Iterator[int]:
        """Steps whose row the next prompt does not extend, since it loses an image or repeats, and the last step."""
        for step in range(1, self.steps):
            if self.repeated is not None or self.kept_images(step + 1) <= self.kept_images(step):
                yield step
        yield self.steps


def head_tokens(preset_text: str, instruction: int = 50) -> int:
    """Estimated tokens of the text before the first screenshot.

    Args:
        preset_text: the preset's text; its tokens are estimated by its length.
        instruction: tokens of the task's instruction.
    """
    return -(-len(preset_text) // CHARACTERS_PER_TOKEN) + instruction + 5  # 5: <|im_start|>system\n … <|im_end|>\n
