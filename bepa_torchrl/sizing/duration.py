"""Time of one iteration on given GPUs: arithmetic at a given utilisation, decoding at a given or estimated speed.

Model FLOPs utilisation (MFU) counts a forward pass and two of its size backward, not what is recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        prefix_cache: whether the rollout engine keeps a past turn's key-value cache and image features.
    """

    episodes: int
    updates: int
    old_log_probs: bool
    prefix_cache: bool


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of an iteration by part, desktops and evaluations excluded."""

    prefill: float
    decode: float
    old_log_probs: float
    update: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.prefill + self.decode + self.old_log_probs + self.update


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


def prefill_flops(model: ModelShape, episode: EpisodeShape, grid: Grid, *, prefix_cache: bool) -> Flops:
    """The prompts of an episode's rollout, without the decoded responses."""
    if prefix_cache:
        lengths = [sequence.tokens for sequence in episode.sequences()]
        return forward(model, lengths, [grid] * sum(s.images for s in episode.sequences()), 0)
    prompts = [episode.prompt(step) for step in range(1, episode.steps + 1)]
    images = sum(episode.kept_images(step) for step in range(1, episode.steps + 1))
    return forward(model, prompts, [grid] * images, 0)


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


def iteration_seconds(
    model: ModelShape,
    episode: EpisodeShape,
    grid: Grid,
    work: Iteration,
    training: Training,
    *,
    flops_per_second: float,
    sampling_share: float,
    tokens_per_second: float,
) -> Seconds:
    """Time of one iteration, without desktops and evaluations; groups without a signal are counted as trained.

    Args:
        model: the model.
        episode: every episode is taken to have all its steps.
        grid: a screenshot's patches.
        work: what is computed.
        training: what is trained.
        flops_per_second: of all GPUs, at the expected utilisation.
        sampling_share: share of the GPUs that sample, in (0, 1].
        tokens_per_second: decoded by the GPUs that sample.
    """
    once = episode_forward(model, episode, grid, training.rank).total
    update = once + episode_backward(model, episode, grid, training).total
    prefill = prefill_flops(model, episode, grid, prefix_cache=work.prefix_cache).total
    return Seconds(
        prefill=work.episodes * prefill / (flops_per_second * sampling_share),
        decode=work.episodes * episode.steps * episode.response / tokens_per_second,
        old_log_probs=work.episodes * once / flops_per_second if work.old_log_probs else 0.0,
        update=work.updates * work.episodes * update / flops_per_second,
    )
