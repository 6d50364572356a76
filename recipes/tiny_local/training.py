"""Trains the local policy by behaviour cloning on recordings. Resumable: a step's data follow from its number."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from bepa_torchrl.testing.tiny_config import MERGE
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from osworld_gym.atomic import write_with
from osworld_gym.tasks.setup.themes import GRID
from recipes.tiny.packed import packed_logits
from recipes.tiny.turns import pack, texts
from recipes.tiny_local.cloning import Library, batch, grounding_batch
from recipes.tiny_local.config import HIDDEN, SCREEN, local_config

POINT_LAYER = 1  #: the decoder layer that is trained to point at the screen
POINT_HEADS = 2  #: its heads that are; named coordinates were as often wrong with one (docs/history/log.md)
_CORPUS = 512  #: screens whose texts the tokenizer is trained on


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters.

    Args:
        steps: optimiser steps.
        restarts: steps at which a new AdamW starts; from the first one on, a known task is always asked for without the
            plan, too.
        shift: step from which screens are moved and recoloured, see :mod:`recipes.tiny_local.cloning`.
        batch: screens per step.
        learning_rate: of AdamW; constant, then linear to zero over the last ``decay`` of the steps before the first
            restart.
        second_rate: the rate at each restart, from which it is linear to zero at the next one or the end.
        grounding: first steps, in which the instruction is the thought, so that labels are read before tasks are known.
        pointing: weight of the loss on the attention that must point at the image token of an action's point.
        places: weight of the loss of a linear map, dropped after training, that reads the column and row of every image
            token at the input of the pointing layer; an action takes its coordinates from there.
        words: step until which the thought's tokens weigh ``thought`` times as much as the response's others;
            afterwards coordinates weigh ``coordinate`` times as much, and from the first restart on both do.
        thought, coordinate: these weights.
        clip: maximum gradient norm.
        sharpness: the result's logits are multiplied by it (:func:`recipes.tiny.pretrain.sharpen`).
        seed: seed of the weights and of the data.
    """

    steps: int = 12_000
    restarts: tuple[int, ...] = (3_000, 4_500, 6_500, 7_500, 8_700, 9_600, 10_300, 11_300)
    shift: int = 4_500
    batch: int = 10
    learning_rate: float = 1.5e-3
    decay: float = 0.4
    second_rate: float = 1e-3
    grounding: int = 500
    pointing: float = 0.3
    places: float = 1.0
    words: int = 1_300
    thought: float = 4.0
    coordinate: float = 8.0
    clip: float = 1.0
    sharpness: float = 2.0
    seed: int = 0

    @property
    def first_restart(self) -> int:
        """The first restart, or the end."""
        return min(self.restarts, default=self.steps)

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        starts = [start for start in self.restarts if start <= step]
        if starts:
            end = min([start for start in self.restarts if start > step], default=self.steps)
            return self.second_rate * (end - step) / (end - starts[-1])
        first = self.first_restart
        return self.learning_rate * min(1.0, (first - step) / max(1.0, self.decay * first))


def local_tokenizer(library: Library) -> PreTrainedTokenizerFast:
    """A tokenizer in which every word of the data and every coordinate of the screen is one token."""
    numbers = [str(number) for number in range(max(SCREEN))] * 2
    template = train_tokenizer(numbers)
    corpus = [text for s in batch(library, 0, _CORPUS) for turn in s.turns for text in texts(turn, template)]
    words = [
        trace.steps[i].intent for traces in library.native.values() for trace in traces for i in range(len(trace.steps))
    ]
    return train_tokenizer(
        [*numbers, *corpus, *(f"{q}{word}" for text in words for word in text.split() for q in " '")]
    )


class Cloning:
    """A resumable run: model, optimiser, step, CPU seconds."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, library: Library, recipe: Recipe) -> None:
        self.tokenizer, self.library, self.recipe = tokenizer, library, recipe
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            self.model = Qwen2_5_VLForConditionalGeneration(local_config(tokenizer))
            self.places = nn.Linear(HIDDEN, sum(size // GRID for size in SCREEN))
        vision: Any = self.model.config.vision_config
        self._patch: int = vision.patch_size
        self.optimizer = self._new_optimizer()
        self.step, self.seconds = 0, 0.0

    def _new_optimizer(self) -> torch.optim.AdamW:
        weights = [*self.model.parameters(), *self.places.parameters()]
        return torch.optim.AdamW(weights, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    def train_step(self) -> dict[str, float]:
        """One optimiser step; returns its losses."""
        start = time.process_time()
        if self.step in self.recipe.restarts:
            self.optimizer = self._new_optimizer()
        losses = self._losses()
        self.optimizer.param_groups[0]["lr"] = self.recipe.rate(self.step)
        self.optimizer.zero_grad()
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip, error_if_nonfinite=True)
        self.optimizer.step()
        self.step += 1
        self.seconds += time.process_time() - start
        return {name: float(value.detach()) for name, value in losses.items()}

    def _losses(self) -> dict[str, Tensor]:
        recipe = self.recipe
        number, again = recipe.seed * recipe.steps + self.step, self.step >= recipe.first_restart
        if self.step < recipe.grounding:
            screens = grounding_batch(self.library, number, recipe.batch)
        else:
            screens = batch(self.library, number, recipe.batch, always_plain=again, shift=self.step >= recipe.shift)
        packed = pack(screens, self.tokenizer, patch=self._patch)
        logits, pointing, states = packed_logits(self.model, packed, point_layer=POINT_LAYER)
        expected = packed.response_tokens()
        each = F.cross_entropy(logits, expected, reduction="none")
        weights = torch.ones_like(each)
        if self.step < recipe.words or again:
            weights[packed.thought_tokens()] = recipe.thought
        if self.step >= recipe.words:
            weights[packed.coordinate_tokens()] = recipe.coordinate
        response = (each * weights).sum() / weights.sum()
        point = -pointing[:, :POINT_HEADS].mean() if len(pointing) else response.new_zeros(())
        place = self._place_loss(states, packed.grid[0])
        right = (logits.argmax(-1) == expected).float().mean()
        return {
            "loss": response + recipe.pointing * point + recipe.places * place,
            "response": each.mean(),
            "point": point,
            "place": place,
            "right": right,
        }

    def _place_loss(self, states: Tensor, grid: Tensor) -> Tensor:
        """Mean of the cross-entropies of column and row over all image tokens.

        Args:
            states: ``[B, image tokens, hidden]``.
            grid: int64 ``[3]``, patches in time, height and width; an image token has ``MERGE`` x ``MERGE``.
        """
        rows, columns = (int(size) // MERGE for size in grid[1:])
        scores = self.places(F.rms_norm(states, states.shape[-1:]))
        at = torch.arange(rows * columns).expand(len(states), -1)
        first = SCREEN[0] // GRID
        column = F.cross_entropy(scores[..., :first].flatten(0, 1), (at % columns).flatten())
        row = F.cross_entropy(scores[..., first:].flatten(0, 1), (at // columns).flatten())
        return (column + row) / 2

    def save(self, path: Path) -> None:
        """Writes the whole run, atomically."""
        state = {
            "model": self.model.state_dict(),
            "places": self.places.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        write_with(path, lambda part: torch.save(state, part))

    def load(self, path: Path) -> None:
        """Restores a run saved by :meth:`save`."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.places.load_state_dict(state["places"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]


def run(
    training: Cloning, state: Path, *, log: Callable[[str], None], every: int = 20, save_every: float = 60.0
) -> None:
    """Trains to the end; resumes from ``state`` if it exists, and saves it every ``save_every`` seconds."""
    if state.exists():
        training.load(state)
        log(f"resumed at step {training.step}")
    saved = time.monotonic()
    while training.step < training.recipe.steps:
        losses = training.train_step()
        if training.step % every == 0:
            shown = " ".join(f"{name} {value:.3f}" for name, value in losses.items())
            log(f"step {training.step}/{training.recipe.steps} {shown} cpu {training.seconds:.0f} s")
        if time.monotonic() - saved > save_every:
            training.save(state)
            saved = time.monotonic()
    training.save(state)
