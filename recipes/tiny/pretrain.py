"""Pretrains the tiny base policy by behaviour cloning, in seven phases (about three hours on two cores).

1. *align*: each labelled image token is classified into its label's word embedding, so that reading is learnt first.
2. *ground*: "click mute" → its coordinates, several labels per screenshot. Two auxiliary losses speed it up: the
   token that predicts a coordinate must attend to the label's image token, and a linear probe (discarded later) must
   read column and row from the image tokens at that layer.
3. *clone*: the native oracle's responses for many tasks per screenshot, some of them grounding.
4. *follow*: more screenshots with fewer tasks each, so that most responses are about the task that led to the screen,
   as in episodes; most of the learning happens here (docs/history/log.md).
5. *act*: the same with fewer shuffled desks, more plans and more of the expert's dialect.
6. *polish*: the same again, after the learning rate fell to zero, from a part of it down to zero.
7. *finish*: as *polish*, with more of the longer tasks, which fail most.

The result is the mean of the weights at the ends of *polish* and *finish*, sharpened; what each gives is
in docs/history/log.md. With :data:`FREE_WORDS` the thoughts are in free words, and the result are the last weights;
:data:`FREE_AGAIN` is a second training that starts from them, :data:`FREE_PLANS` another one, with more plans.

Every step's data and the learning rate follow from the step number, so a run can stop and resume anywhere. A step's
screenshots are in ``parts``, which as many processes can share (:mod:`recipes.tiny.processes`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration

from bepa_torchrl.testing.tiny_config import tiny_config
from osworld_gym.atomic import write_with
from recipes.tiny.cloning import ACTING, FINISHING, READING, Shares, shard
from recipes.tiny.grounding import grounding_screen, label_words
from recipes.tiny.muon import Muon
from recipes.tiny.packed import image_embeddings, packed_logits
from recipes.tiny.processes import ALONE, Processes
from recipes.tiny.turns import Screen, pack, pixel_values
from recipes.tiny.wording import Styles, WordTargets

PHASES = ("align", "ground", "clone", "follow", "act", "polish", "finish")
_FOLLOW = 500_000  #: offset of the data of phase *follow*
_ACT = 600_000  #: offset of the data of phase *act*
_POLISH = 700_000  #: offset of the data of phase *polish*
_FINISH = 800_000  #: offset of the data of phase *finish*
_PART = 1_000_000  #: offset of the cloning data of the next part
POINT_LAYER = 1  #: the decoder layer that is trained to point at the screen


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of the pretraining.

    Args:
        steps: optimiser steps of the seven phases; a phase may have none.
        batch: screenshots per step; twice as many from *follow* on.
        parts: into how many equal parts they are divided; the loss is the mean of the parts' losses.
        turns: approximate number of turns per screenshot in addition to the played task's; two from *follow* on.
        learning_rate: of AdamW, which trains embeddings, biases and norms; constant, then linear to zero over the last
            ``decay`` of the steps before *polish*; in *polish* and in *finish* from ``polish`` times its value to zero.
        matrix_rate: the learning rate of Muon, which trains the weight matrices; same schedule.
        auxiliary: weight of the two auxiliary losses in *ground*.
        auxiliary_clone: weight of the two auxiliary losses after *ground*.
        thought: weight of the thought's tokens relative to the response's others, which mostly follow from them.
        clip: maximum gradient norm.
        sharpness: the result's logits are multiplied by it (:func:`sharpen`).
        averaged: whether the result is the mean of the weights at the ends of *polish* and *finish*, not the last ones.
        restarts: whether *polish* and *finish* start again from ``polish`` times the learning rate; if not, it falls
            to zero once, over the last ``decay`` of all steps.
        hidden: width of the language model, a multiple of 32.
        styles: the styles of the thoughts; None: bare decisions.
        acting: what the desks are made of in *act* and *polish*.
        finishing: in *finish*.
        drawn: weight of a drawn word's tokens, whose loss is a divergence (:class:`~recipes.tiny.wording.WordTargets`).
        seed: seed of the weights.
        data: offset of the data's seeds.
    """

    steps: tuple[int, ...] = (150, 260, 500, 7764, 9326, 5000, 1500)
    batch: int = 8
    parts: int = 1
    turns: int = 8
    learning_rate: float = 1.5e-3
    matrix_rate: float = 3e-3
    decay: float = 0.4
    polish: float = 0.5
    auxiliary: float = 0.3
    auxiliary_clone: float = 0.3
    thought: float = 4.0
    clip: float = 1.0
    sharpness: float = 1.82
    averaged: bool = True
    restarts: bool = True
    hidden: int = 96
    styles: Styles | None = None
    acting: Shares = ACTING
    finishing: Shares = FINISHING
    drawn: float = 0.5
    seed: int = 0
    data: int = 0


#: a trial knew the expert's dialect better than it had to, and followed plans worse (docs/history/log.md)
_MORE_PLANS = replace(ACTING, shuffled=0.4, expert=0.24)
#: thoughts in free words, more weights, one decay of the learning rate, nothing done to the result
FREE_WORDS = Recipe(
    steps=(150, 300, 500, 6800, 6800, 6800, 1650),
    parts=2,
    sharpness=1.0,
    averaged=False,
    restarts=False,
    decay=0.5,
    hidden=128,
    styles=Styles(),
    acting=_MORE_PLANS,
    finishing=replace(_MORE_PLANS, long=FINISHING.long),
)
#: a second training, from the first one's weights: other data, half the learning rate, which falls to zero again
FREE_AGAIN = replace(
    FREE_WORDS,
    steps=(0, 0, 0, 0, 0, 9600, 2400),
    learning_rate=FREE_WORDS.learning_rate / 2,
    matrix_rate=FREE_WORDS.matrix_rate / 2,
    decay=1.0,
    data=2_000_000,
)
_MOSTLY_PLANS = Shares(shuffled=0.55, expert=0.1, planned=0.78)
#: another second training, after which fewer unknown tasks are solved without a plan: plans for these are learnt on the
#: shuffled desks, plans for known ones on the others (docs/history/log.md)
FREE_PLANS = replace(
    FREE_AGAIN,
    acting=_MOSTLY_PLANS,
    finishing=replace(_MOSTLY_PLANS, long=FINISHING.long),
)
RECIPES = {"terse": Recipe(), "free": FREE_WORDS}  #: by the name of the thoughts' wording
AGAIN = {"free": FREE_AGAIN}  #: of the second training


class Pretraining:
    """A resumable run: model, probe, optimisers, step, CPU seconds per phase.

    Args:
        model: the model to train.
        tokenizer: its tokenizer.
        recipe: the hyper-parameters.
        processes: those that train together, each with the parts of every step that are its own.

    Raises:
        ValueError: the recipe's parts cannot be shared equally.
    """

    def __init__(
        self,
        model: Qwen2_5_VLForConditionalGeneration,
        tokenizer: PreTrainedTokenizerFast,
        recipe: Recipe,
        processes: Processes = ALONE,
    ) -> None:
        if recipe.batch % recipe.parts:
            raise ValueError(f"expected a batch that {recipe.parts} parts share equally, got {recipe.batch}")
        self.model, self.tokenizer, self.recipe, self.processes = model, tokenizer, recipe, processes
        self.parts = processes.own(recipe.parts)  #: of this process
        self.step = 0
        self.polished: dict[str, Tensor] = {}  #: the weights at the end of *polish*
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._drawn = None if recipe.styles is None else WordTargets(tokenizer, recipe.styles)
        with torch.random.fork_rng():
            torch.manual_seed(recipe.seed)
            self.probe = nn.Linear(_embeddings(model).shape[1], 2 * 8)
        embeddings = _embeddings(model)
        matrices = [p for p in model.parameters() if p.ndim == 2 and p is not embeddings]
        others = [p for p in model.parameters() if p.ndim != 2 or p is embeddings]
        self._parameters = [*matrices, *others, *self.probe.parameters()]
        self.optimizers: tuple[torch.optim.Optimizer, ...] = (
            Muon(matrices, lr=recipe.matrix_rate),
            torch.optim.AdamW(
                [*others, *self.probe.parameters()], lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
            ),
        )
        words = label_words()
        self._word_index = {word: i for i, word in enumerate(words)}
        # a word has different tokens after a space and after a quote; a number has the same
        self._word_ids = torch.tensor([[tokenizer(f"{q}{w}")["input_ids"][-1] for w in words] for q in " '"])

    @property
    def total(self) -> int:
        """Steps of all phases."""
        return sum(self.recipe.steps)

    def phase(self) -> tuple[str, int]:
        """The phase of the next step and the step's index in it. Raises IndexError after the last step."""
        done = 0
        for name, steps in zip(PHASES, self.recipe.steps, strict=True):
            if self.step < done + steps:
                return name, self.step - done
            done += steps
        raise IndexError(f"all {self.total} steps are done")

    def learning_rates(self) -> tuple[float, float]:
        """Of Muon and AdamW: constant, linear to zero, and with restarts linear to zero again, twice."""
        if not self.recipe.restarts:
            left = min(1.0, (self.total - self.step) / max(1.0, self.recipe.decay * self.total))
            return self.recipe.matrix_rate * left, self.recipe.learning_rate * left
        last = self.recipe.steps[-2:]
        rest, after = self.total - self.step, last[1]
        if rest > sum(last):
            left = min(1.0, (rest - sum(last)) / max(1.0, self.recipe.decay * (self.total - sum(last))))
        elif rest > after:
            left = self.recipe.polish * (rest - after) / last[0]
        else:
            left = self.recipe.polish * rest / after
        return self.recipe.matrix_rate * left, self.recipe.learning_rate * left

    def train_step(self) -> dict[str, float]:
        """One optimiser step of the current phase; returns the mean losses of this process's parts."""
        name, number = self.phase()
        if name == "finish" and number == 0:
            self.polished = {key: weight.clone() for key, weight in self.model.state_dict().items()}
        start = time.process_time()
        losses: dict[str, Callable[[int, int], dict[str, Tensor]]] = {
            "align": self._align,
            "ground": self._ground,
            "clone": self._clone,
            "follow": self._follow,
            "act": self._act,
            "polish": self._polish,
            "finish": self._finish,
        }
        for optimizer, rate in zip(self.optimizers, self.learning_rates(), strict=True):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
        shown: dict[str, float] = {}
        for part in self.parts:
            found = losses[name](number, part)
            (found["loss"] / self.recipe.parts).backward()
            for key, value in found.items():
                shown[key] = shown.get(key, 0.0) + float(value.detach()) / len(self.parts)
        self.processes.sum_gradients(self._parameters)
        nn.utils.clip_grad_norm_(self._parameters, self.recipe.clip, error_if_nonfinite=True)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.seconds[name] += time.process_time() - start
        return shown

    def _grounding(self, phase: str, number: int, part: int, turns: int) -> list[Screen]:
        batch = self.recipe.batch // self.recipe.parts
        first = self.recipe.data + (PHASES.index(phase) * 1_000_000) + number * self.recipe.batch + part * batch
        return [grounding_screen(first + i, turns, self.recipe.styles) for i in range(batch)]

    def _align(self, number: int, part: int) -> dict[str, Tensor]:
        screens = self._grounding("align", number, part, 0)
        grid = torch.tensor([[1, screens[0].pixels.shape[0] // 8, screens[0].pixels.shape[1] // 8]] * len(screens))
        images = image_embeddings(self.model, pixel_values(screens), grid)
        known = [
            (i, tile, self._word_index[label])
            for i, screen in enumerate(screens)
            for label, tile in screen.labels
            if label in self._word_index
        ]
        screen, tile, word = torch.tensor(known).unbind(1)
        embeddings = _embeddings(self.model)
        scores = [images[screen, tile] @ embeddings[ids].T for ids in self._word_ids]
        loss = torch.stack([F.cross_entropy(score, word) for score in scores]).mean()
        return {"loss": loss, "right": (scores[0].argmax(-1) == word).float().mean()}

    def _ground(self, number: int, part: int) -> dict[str, Tensor]:
        return self._responses(self._grounding("ground", number, part, self.recipe.turns), self.recipe.auxiliary)

    def _clone(self, number: int, part: int) -> dict[str, Tensor]:
        return self._cloning(number, part, READING, batch=self.recipe.batch, turns=self.recipe.turns)

    def _follow(self, number: int, part: int) -> dict[str, Tensor]:
        return self._cloning(_FOLLOW + number, part, READING)

    def _act(self, number: int, part: int) -> dict[str, Tensor]:
        return self._cloning(_ACT + number, part, self.recipe.acting)

    def _polish(self, number: int, part: int) -> dict[str, Tensor]:
        return self._cloning(_POLISH + number, part, self.recipe.acting)

    def _finish(self, number: int, part: int) -> dict[str, Tensor]:
        return self._cloning(_FINISH + number, part, self.recipe.finishing)

    def _cloning(
        self, number: int, part: int, shares: Shares, *, batch: int | None = None, turns: int = 2
    ) -> dict[str, Tensor]:
        """The losses of a part of cloning data: twice as many screenshots and two turns of other tasks by default."""
        batch = (2 * self.recipe.batch if batch is None else batch) // self.recipe.parts
        number += self.recipe.data + part * _PART
        screens = shard(number, batch=batch, turns=turns, shares=shares, styles=self.recipe.styles)
        return self._responses(screens, self.recipe.auxiliary_clone)

    def _responses(self, screens: Sequence[Screen], weight: float) -> dict[str, Tensor]:
        batch = pack(screens, self.tokenizer, drawn=self._drawn)
        logits, looking, images = packed_logits(self.model, batch, point_layer=POINT_LAYER)
        wanted = batch.response_tokens()
        each, drawn = self._token_losses(logits, wanted, batch.drawn_tokens())
        thought = batch.thought_tokens()
        weights = torch.where(thought, self.recipe.thought, 1.0)
        weights = torch.where(drawn, self.recipe.drawn, weights)
        response = (each * weights).sum() / weights.sum()
        point = -looking[:, 0].mean()
        height, width = screens[0].pixels.shape[0] // 16, screens[0].pixels.shape[1] // 16
        tile = torch.arange(height * width).repeat(len(screens))
        column, row = self.probe(images.reshape(-1, images.shape[-1])).split(8, dim=-1)
        place = F.cross_entropy(column, tile % width) + F.cross_entropy(row, tile // width)
        right = (logits.argmax(-1) == wanted).float()
        loss = response + weight * (point + place)
        found = {"loss": loss, "response": each.mean(), "point": point, "place": place}
        found |= {"right": right[~drawn].mean(), "thought": right[thought].mean()}
        found |= {"coordinates": right[batch.coordinate_tokens()].mean()}
        return found if self._drawn is None else found | {"words": each[drawn].mean()}

    def _token_losses(self, logits: Tensor, wanted: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Per token its loss, and whether it is a drawn word, whose loss is the divergence from its distribution."""
        drawn = position > 0
        log_probs = logits.log_softmax(-1)
        each = -log_probs.gather(1, wanted[:, None]).squeeze(1)
        if self._drawn is None:
            return each, drawn
        divergence = self._drawn.divergence(log_probs[drawn], position[drawn])
        return each.masked_scatter(drawn, divergence), drawn

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "polished": self.polished,
            "probe": self.probe.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "recipe": asdict(self.recipe),
            "step": self.step,
            "seconds": dict(self.seconds),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a run.

        Raises:
            ValueError: the state is of another recipe.
        """
        given, own = state["recipe"], asdict(self.recipe)
        if given != own:
            other = ", ".join(
                f"{key} {given.get(key)} instead of {own[key]}" for key in own if given.get(key) != own[key]
            )
            raise ValueError(
                f"the saved state is of a run with {other}; fix: another --state, or the run's own options"
            )
        self.model.load_state_dict(state["model"])
        self.probe.load_state_dict(state["probe"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds, self.polished = state["step"], dict(state["seconds"]), dict(state["polished"])

    def save(self, path: Path) -> None:
        """Writes the whole run, atomically."""
        write_with(path, lambda part: torch.save(self.state_dict(), part))

    def load(self, path: Path) -> None:
        """Restores a run saved by :meth:`save`."""
        self.load_state_dict(torch.load(path, weights_only=True))


def _embeddings(model: Qwen2_5_VLForConditionalGeneration) -> Tensor:
    """The words' embeddings, ``[vocabulary, hidden]``."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight


def new_model(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Qwen2_5_VLForConditionalGeneration:
    """The tiny model with the recipe's seed. The two tokens of a word start with equal embeddings."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        model = Qwen2_5_VLForConditionalGeneration(tiny_config(tokenizer, hidden=recipe.hidden))
    with torch.no_grad():
        weight = _embeddings(model)
        for word in label_words():
            spaced, bare = (tokenizer(f"{q}{word}")["input_ids"][-1] for q in " '")
            weight[spaced] = weight[bare]
    return model


def finished_model(training: Pretraining) -> Qwen2_5_VLForConditionalGeneration:
    """The result of a whole run; changes the run's model.

    Raises:
        ValueError: steps are left.
    """
    if training.step < training.total:
        raise ValueError(f"expected a run of {training.total} steps that has ended, got one at step {training.step}")
    with torch.no_grad():
        for key, weight in training.model.named_parameters():  # a state dict has tied weights twice
            if training.recipe.averaged and key in training.polished:
                weight.copy_((weight + training.polished[key]) / 2)
    sharpen(training.model, training.recipe.sharpness)
    return training.model


def sharpen(model: Qwen2_5_VLForConditionalGeneration, factor: float) -> None:
    """Multiplies the logits, so that sampling at temperature 1 is what sampling at ``1 / factor`` was."""
    with torch.no_grad():
        model.model.language_model.norm.weight.mul_(factor)


def run(
    training: Pretraining,
    state: Path,
    *,
    log: Callable[[str], None] = print,
    every: int = 20,
    save_every: float = 60.0,
) -> None:
    """Trains to the end, resuming from ``state`` if it is there and saving it every ``save_every`` seconds.

    Of several processes the first one saves and logs.
    """
    first = training.processes.rank == 0
    if state.exists():
        training.load(state)
        if first:
            log(f"resumed at step {training.step}")
    saved = time.monotonic()
    while training.step < training.total:
        name, number = training.phase()
        losses = training.train_step()
        if first and number % every == 0:
            shown = " ".join(f"{key} {value:.3f}" for key, value in losses.items())
            log(f"{name} {number} of step {training.step}/{training.total} {shown} cpu {training.seconds[name]:.0f} s")
        if first and time.monotonic() - saved > save_every:
            training.save(state)
            saved = time.monotonic()
    if first:
        training.save(state)


def short(recipe: Recipe, share: float) -> Recipe:
    """The recipe with a share of its steps, at least one per phase that has any."""
    return replace(recipe, steps=tuple(max(1, round(steps * share)) if steps else 0 for steps in recipe.steps))
