"""Turns (instruction and response) about screenshots, and their conversion to token rows in the policy's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from bepa_torchrl.testing.tiny_config import MERGE, PATCH, image_processor_config, token_id
from osworld_gym.types import Action, Point, PromptContext
from osworld_gym.uitars.format import format_response
from osworld_gym.uitars.prompt import build_messages
from recipes.tiny.packed import Packed, Rows

BUCKETS = 4  #: batches of turns of similar length
_VISION_END = "<|vision_end|>"
_END = "<|im_end|>"


@dataclass(frozen=True)
class Turn:
    """One training sample of cloning: an instruction about a screenshot, and the response.

    Args:
        instruction: the task's instruction.
        thought, actions: the response; points are in screen pixels, which equal the model's pixels here.
        plan: the plan in the prompt, or None.
        last: the thought of the previous response, or None at the first step.
        brief: whether only the response's thought is trained.
        prose: whether the thought is the expert's prose, most of whose words could as well be others.
    """

    instruction: str
    thought: str
    actions: tuple[Action, ...]
    plan: str | None = None
    last: str | None = None
    brief: bool = False
    prose: bool = False


@dataclass(frozen=True)
class Screen:
    """A screenshot, uint8 ``[H, W, 3]``, its labelled tiles (label, index of the image token), and turns about it."""

    pixels: NDArray[np.uint8]
    labels: tuple[tuple[str, int], ...]
    turns: tuple[Turn, ...]


class DrawnWords(Protocol):
    """Says which words of a thought are drawn (:class:`recipes.tiny.wording.WordTargets`)."""

    def positions(self, turn: Turn, thought: Sequence[int]) -> list[int]:
        """For each token of the turn's thought, a number above 0 if it is drawn, else 0."""
        ...


def prompt_messages(turn: Turn) -> list[dict[str, Any]]:
    """The chat messages of a turn, as in a rollout, without the image's bytes."""
    earlier = () if turn.last is None else (format_response(turn.last, (Action("wait"),)),)
    context = PromptContext(turn.instruction, (b"",) * (len(earlier) + 1), earlier, turn.plan)
    return build_messages(context, preset="compact")


def texts(turn: Turn, tokenizer: PreTrainedTokenizerFast) -> tuple[str, str, str]:
    """(prompt up to the image's end, the rest of the prompt, the response with its end token)."""
    prompt = tokenizer.apply_chat_template(prompt_messages(turn), tokenize=False, add_generation_prompt=True)
    head, mark, rest = str(prompt).partition(_VISION_END)
    return head + mark, rest, format_response(turn.thought, turn.actions) + _END


def pixel_values(screens: Sequence[Screen], patch: int = PATCH) -> Tensor:
    """Qwen2-VL's image processor's output for unresized screenshots: float32 ``[B * patches, 3 * 2 * patch * patch]``.

    Args:
        screens: B screenshots of one size, a multiple of ``MERGE * patch``.
        patch: side of a patch in pixels.
    """
    config = image_processor_config()
    x = torch.from_numpy(np.stack([screen.pixels for screen in screens])).float() / 255
    x = (x - torch.tensor(config["image_mean"])) / torch.tensor(config["image_std"])
    count, height, width, _ = x.shape
    tile = MERGE * patch
    x = x.view(count, height // tile, MERGE, patch, width // tile, MERGE, patch, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6).unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, 2, -1, -1)
    return x.reshape(-1, 3 * 2 * patch * patch)


def pack(
    screens: Sequence[Screen],
    tokenizer: PreTrainedTokenizerFast,
    *,
    buckets: int = BUCKETS,
    patch: int = PATCH,
    drawn: DrawnWords | None = None,
) -> Packed:
    """Converts all turns of screenshots of one size to token rows, sorted by length into ``buckets`` batches.

    Args:
        screens: the screenshots; height and width in pixels are multiples of ``MERGE * patch``.
        tokenizer: the tokenizer of the model.
        buckets: number of batches.
        patch: side of the vision tower's patches in pixels.
        drawn: says which words are drawn; None: none is.
    """
    height, width, _ = screens[0].pixels.shape
    tile = MERGE * patch
    grid = torch.tensor([[1, height // patch, width // patch]] * len(screens))
    asked = [(i, turn) for i, screen in enumerate(screens) for turn in screen.turns]
    written = [texts(turn, tokenizer) for _, turn in asked]
    head = written[0][0].replace("<|image_pad|>", "<|image_pad|>" * (height // tile * (width // tile)))
    shared = torch.tensor(tokenizer(head)["input_ids"])
    prompts = tokenizer([rest for _, rest, _ in written])["input_ids"]
    whole = tokenizer([response for *_, response in written])["input_ids"]
    responses = [
        _brief(ids, turn, tokenizer) if turn.brief else ids for (_, turn), ids in zip(asked, whole, strict=True)
    ]
    order = sorted(range(len(asked)), key=lambda i: len(prompts[i]) + len(responses[i]))
    size = -(-len(order) // buckets)
    rows = []
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        rows.append(
            _rows([(*asked[i], prompts[i], responses[i]) for i in chosen], tokenizer, height, width, tile, drawn)
        )
    return Packed(pixel_values(screens, patch), grid, shared, tuple(rows))


def _brief(response: list[int], turn: Turn, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The response's tokens up to the one that ends the thought."""
    return response[: 2 + len(tokenizer(f" {turn.thought}")["input_ids"])]


def _rows(
    turns: Sequence[tuple[int, Turn, list[int], list[int]]],
    tokenizer: PreTrainedTokenizerFast,
    height: int,
    width: int,
    tile: int,
    drawn: DrawnWords | None,
) -> Rows:
    length = max(len(prompt) + len(response) for *_, prompt, response in turns)
    ids = torch.full((len(turns), length), token_id(tokenizer, "<|endoftext|>"))
    is_response = torch.zeros(len(turns), length, dtype=torch.bool)
    is_thought = torch.zeros(len(turns), length, dtype=torch.bool)
    position = torch.zeros(len(turns), length, dtype=torch.long)
    box = token_id(tokenizer, "<|box_start|>")
    points: list[tuple[int, int]] = []
    tiles: list[int] = []
    for i, (_, turn, prompt, response) in enumerate(turns):
        end = len(prompt) + len(response)
        ids[i, :end] = torch.tensor(prompt + response)
        is_response[i, len(prompt) : end] = True
        thought = tokenizer(f" {turn.thought}")["input_ids"]
        assert response[1 : 1 + len(thought)] == thought, turn.thought
        said = slice(len(prompt) + 1, len(prompt) + 1 + len(thought))
        if drawn is None:
            is_thought[i, said] = not turn.prose
        else:
            position[i, said] = torch.tensor(drawn.positions(turn, thought))
            is_thought[i, said] = position[i, said] == 0
            # nothing in the prompt asks for the expert's style yet: the policy is to know it, not to begin with it
            is_response[i, said.start] = not (turn.prose and turn.last is None)
        starts = [len(prompt) + j for j, token in enumerate(response) if token == box]
        shown = [] if turn.brief else _tiles(turn.actions, height, width, tile)
        for start, number in zip(starts, shown, strict=True):
            # box ( x , y ): the bracket predicts x, the comma predicts y
            points += [(i, start + 1), (i, start + 3)]
            tiles += [number, number]
    targets = torch.zeros(len(points), height // tile * (width // tile), dtype=torch.bool)
    targets[torch.arange(len(points)), torch.tensor(tiles, dtype=torch.long)] = True
    screen = torch.tensor([i for i, *_ in turns])
    at = torch.tensor(points, dtype=torch.long).view(-1, 2)
    return Rows(ids, screen, is_response, is_thought, position, at, targets)


def tile_of(point: Point, height: int, width: int, tile: int = MERGE * PATCH) -> int:
    """The index of the image token that shows a point; each represents a square with a side of ``tile`` pixels."""
    column, row = min(int(point[0]), width - 1) // tile, min(int(point[1]), height - 1) // tile
    return row * (width // tile) + column


def _tiles(actions: Sequence[Action], height: int, width: int, tile: int) -> list[int]:
    points = [point for action in actions for point in (action.start, action.end) if point is not None]
    return [tile_of(point, height, width, tile) for point in points]
