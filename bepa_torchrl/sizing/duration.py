"""Time of one iteration on given GPUs: arithmetic at a given utilisation, decoding at a given or estimated speed.

Model FLOPs utilisation (MFU) counts a forward pass and two of its size backward, not what is recomputed.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from bepa_torchrl.sizing.flops import Flops, Training, backward, forward
from bepa_torchrl.sizing.gpus import Gpu
from bepa_torchrl.sizing.memory import kv_bytes
from bepa_torchrl.sizing.model import ModelShape
from bepa_torchrl.sizing.tokens import EpisodeShape, Grid

#: share of the memory's bandwidth that decoding is assumed to reach
BANDWIDTH_USE = 0.5


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one iteration computes.

    Args:
        episodes: rollouts of the iteration.
        updates: passes over their rows.
        old_log_probs: whether the old log-probs take a forward pass.
        base_log_probs: whether those of the base policy do.
        step_episodes: episodes of an optimiser step; the last step of a pass may have fewer.
    """

    episodes: int
    updates: int
    old_log_probs: bool
    base_log_probs: bool
    step_episodes: int

    @property
    def passes(self) -> int:
        """Passes over the rows, each of which reads their screenshots."""
        return self.updates + int(self.old_log_probs) + int(self.base_log_probs)

    def scored(self, gpus: int) -> int:
        """Episodes of the GPU that has the most of a pass over all rows; an episode is not divided."""
        return math.ceil(self.episodes / gpus)

    def trained(self, gpus: int) -> int:
        """The same of a pass in optimiser steps, which the GPUs begin together."""
        whole, rest = divmod(self.episodes, self.step_episodes)
        return whole * math.ceil(self.step_episodes / gpus) + math.ceil(rest / gpus)


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of an iteration by part, evaluations excluded.

    Args:
        prefill: prompts of the rollouts.
        decode: responses of the rollouts.
        preparation: screenshots that are decoded and resized while the GPU waits.
        desktops: what resets and steps of the desktops add to prompts and responses.
        sync: the engine's weights.
        old_log_probs: a forward pass over the rows.
        base_log_probs: one by the base policy.
        update: forward and backward passes over the rows; groups without a signal are counted as trained.
    """

    prefill: float
    decode: float
    preparation: float
    desktops: float
    sync: float
    old_log_probs: float
    base_log_probs: float
    update: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return float(sum(asdict(self).values()))

    @property
    def rollouts(self) -> float:
        """What playing takes; all of the preparation is counted here."""
        return self.prefill + self.decode + self.preparation + self.desktops


def episode_forward(model: ModelShape, episode: EpisodeShape, grid: Grid, rank: int = 0) -> Flops:
    """A forward pass over an episode's rows, shared prefixes and screenshots computed once per sequence."""
    sequences = episode.sequences()
    images = sum(sequence.images for sequence in sequences)
    scored = episode.steps * episode.response
    return forward(model, [sequence.tokens for sequence in sequences], [grid] * images, scored, rank=rank)


def episode_backward(model: ModelShape, episode: EpisodeShape, grid: Grid, training: Training) -> Flops:
    """The backward pass of :func:`episode_forward`, without recomputation."""
    sequences = episode.sequences()
    images = sum(sequence.images for sequence in sequences)
    scored = episode.steps * episode.response
    return backward(model, [s.tokens for s in sequences], [grid] * images, scored, training=training)


def rows_forward(model: ModelShape, episode: EpisodeShape, grid: Grid) -> Flops:
    """A forward pass over each row of an episode by itself, which encodes its screenshots again."""
    rows = episode.rows()
    images = sum(row.images for row in rows)
    return forward(model, [row.tokens for row in rows], [grid] * images, episode.steps * episode.response)


def decode_speed(model: ModelShape, device: Gpu, rows: int, context: float, element: int) -> float:
    """Tokens per second of one GPU that decodes ``rows`` sequences at once, bound by the memory's bandwidth.

    Args:
        model: the model.
        device: the GPU.
        rows: sequences at once, at least 1.
        context: mean length of a sequence in tokens.
        element: bytes per element of weights and cache.
    """
    text = model.text
    weights = element * (text.layers * text.layer_matrices + text.hidden * text.vocabulary)
    read = weights + rows * context * kv_bytes(text, element)
    return rows * BANDWIDTH_USE * device.bandwidth / read
