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

from bepa_torchrl.tiny.packed import packed_logits
from bepa_torchrl.tiny.tokenizer import train_tokenizer
from bepa_torchrl.tiny.turns import pack, texts
from bepa_torchrl.tiny_local.cloning import Library, batch, grounding_batch
from bepa_torchrl.tiny_local.config import SCREEN, local_config
from osworld_gym.atomic import write_with

POINT_LAYER = 1  #: the decoder layer that is trained to point at the screen
_CORPUS = 512  #: screens whose texts the tokenizer is trained on


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters.

    Args:
        steps: optimiser steps.
        restart: step at which AdamW starts anew for the rest of the steps, in which a known task is always asked for
            without the plan, too.
        batch: screens per step.
        learning_rate: of AdamW; constant, then linear to zero over the last ``decay`` of the steps before ``restart``.
        second_rate: the rate at ``restart``, from which it is linear to zero.
        grounding: first steps, in which the instruction is the thought, so that labels are read before tasks are known.
        pointing: weight of the loss on the attention that must point at the image token of an action's point.
        words: step until which the thought's tokens weigh ``thought`` times as much as the response's others;
            afterwards coordinates weigh ``coordinate`` times as much, and from ``restart`` on both do.
        thought, coordinate: these weights.
        clip: maximum gradient norm.
        seed: seed of the weights and of the data.
    """

    steps: int = 4_500
    restart: int = 3_000
    batch: int = 10
    learning_rate: float = 1.5e-3
    decay: float = 0.4
    second_rate: float = 1e-3
    grounding: int = 500
    pointing: float = 0.3
    words: int = 1_300
    thought: float = 4.0
    coordinate: float = 4.0
    clip: float = 1.0
    seed: int = 0

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        if step >= self.restart:
            return self.second_rate * (self.steps - step) / (self.steps - self.restart)
        return self.learning_rate * min(1.0, (self.restart - step) / max(1.0, self.decay * self.restart))


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
        vision: Any = self.model.config.vision_config
        self._patch: int = vision.patch_size
        self.optimizer = self._new_optimizer()
        self.step, self.seconds = 0, 0.0

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self.model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    def train_step(self) -> dict[str, float]:
        """One optimiser step; returns its losses."""
        start = time.process_time()
        if self.step == self.recipe.restart:
            self.optimizer = self._new_optimizer()
        losses = self._losses()
        self.optimizer.param_groups[0]["lr"] = self.recipe.rate(self.step)
        self.optimizer.zero_grad()
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.step += 1
        self.seconds += time.process_time() - start
        return {name: float(value.detach()) for name, value in losses.items()}

    def _losses(self) -> dict[str, Tensor]:
        recipe = self.recipe
        number, again = recipe.seed * recipe.steps + self.step, self.step >= recipe.restart
        if self.step < recipe.grounding:
            screens = grounding_batch(self.library, number, recipe.batch)
        else:
            screens = batch(self.library, number, recipe.batch, always_plain=again)
        packed = pack(screens, self.tokenizer, patch=self._patch)
        logits, pointing, _ = packed_logits(self.model, packed, point_layer=POINT_LAYER)
        expected = packed.response_tokens()
        each = F.cross_entropy(logits, expected, reduction="none")
        weights = torch.ones_like(each)
        if self.step < recipe.words or again:
            weights[packed.thought_tokens()] = recipe.thought
        if self.step >= recipe.words:
            weights[packed.coordinate_tokens()] = recipe.coordinate
        response = (each * weights).sum() / weights.sum()
        point = -pointing[:, 0].mean() if len(pointing) else response.new_zeros(())
        right = (logits.argmax(-1) == expected).float().mean()
        return {
            "loss": response + recipe.pointing * point,
            "response": each.mean(),
            "point": point,
            "right": right,
        }

    def save(self, path: Path) -> None:
        """Writes the whole run, atomically."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        write_with(path, lambda part: torch.save(state, part))

    def load(self, path: Path) -> None:
        """Restores a run saved by :meth:`save`."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
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
