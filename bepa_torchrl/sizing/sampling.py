"""Time of rollouts on the GPU that samples: the batches that can be formed, what its caches hold, the images prepared.

At step t of an episode every desktop's prompt has about the same length, so that the rows of a batch follow from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bepa_torchrl.sizing.duration import decode_speed
from bepa_torchrl.sizing.flops import Flops, forward
from bepa_torchrl.sizing.gpus import Gpu
from bepa_torchrl.sizing.memory import kv_bytes
from bepa_torchrl.sizing.model import ModelShape
from bepa_torchrl.sizing.tokens import EpisodeShape, Grid

#: least seconds per decoded token of a batch of the built-in sampler, which starts every kernel from Python; estimated
#: by reading the code, not measured on a GPU
SAMPLER_STEP = 0.03
#: CPU seconds to decode, resize and cut a screenshot into patches, per patch (0.10 s for the 10,764 of 1932x1092)
SECONDS_PER_PATCH = 0.10 / 10_764
#: bytes of patches that are kept for an engine (:mod:`bepa_torchrl.scale.engine.inputs`)
PATCH_CACHE = 1 << 30


@dataclass(frozen=True, slots=True)
class Sampling:
    """What samples.

    Args:
        desktops: episodes that run at once.
        max_rows: maximum rows of a batch.
        max_batch_tokens: maximum tokens of a batch of the built-in sampler, padding included; None: an engine, whose
            prompts are computed in pieces.
        cache: bytes of key-value cache for the rows that are decoded, and with an engine for past turns.
        keeps_prefixes: whether past turns stay in the cache while it has room.
        step_seconds: least seconds per decoded token of a batch.
        image_cache: number of screenshots that need not be prepared again.
    """

    desktops: int
    max_rows: int
    max_batch_tokens: int | None
    cache: int
    keeps_prefixes: bool
    step_seconds: float
    image_cache: int

    def rows(self, tokens: int, bytes_per_token: int) -> int:
        """Rows of a batch of prompts of ``tokens`` tokens, at least 1."""
        limits = [self.desktops, self.max_rows, self.cache // (tokens * bytes_per_token)]
        if self.max_batch_tokens is not None:
            limits.append(self.max_batch_tokens // tokens)
        return max(1, min(limits))


def prefixes_fit(episode: EpisodeShape, sampling: Sampling, bytes_per_token: int) -> bool:
    """Whether the cache holds the longest row of every desktop.

    If it does not, nothing of it helps: turns come round in order, so that the least recently used block is the next
    that is asked for.
    """
    longest = max(row.tokens for row in episode.rows())
    return sampling.keeps_prefixes and sampling.desktops * longest * bytes_per_token <= sampling.cache


def decode_seconds(
    model: ModelShape, device: Gpu, episode: EpisodeShape, episodes: int, sampling: Sampling, element: int
) -> float:
    """Seconds in which one GPU decodes the responses of ``episodes`` episodes of all their steps."""
    per_token, total = kv_bytes(model.text, element), 0.0
    for step in range(1, episode.steps + 1):
        tokens = episode.prompt(step)
        rows = sampling.rows(tokens, per_token)
        speed = decode_speed(model, device, rows, tokens + episode.response / 2, element)
        total += episodes * episode.response * max(1 / speed, sampling.step_seconds / rows)
    return total


def prefill_flops(model: ModelShape, episode: EpisodeShape, grid: Grid, *, prefixes: bool) -> Flops:
    """The prompts of an episode's rollout, without the decoded responses.

    Args:
        model: the model.
        episode: the episode.
        grid: a screenshot's patches.
        prefixes: whether keys, values and features of past turns are still there.
    """
    if prefixes:
        lengths = [sequence.tokens for sequence in episode.sequences()]
        return forward(model, lengths, [grid] * sum(s.images for s in episode.sequences()), 0)
    prompts = [episode.prompt(step) for step in range(1, episode.steps + 1)]
    images = sum(episode.kept_images(step) for step in range(1, episode.steps + 1))
    return forward(model, prompts, [grid] * images, 0)


def images_prepared(episode: EpisodeShape, sampling: Sampling) -> int:
    """Screenshots of an episode that are decoded and cut into patches during its rollout.

    Once each if the cache has room for those of every desktop, otherwise all those of every prompt.
    """
    kept = [episode.kept_images(step) for step in range(1, episode.steps + 1)]
    return episode.steps if sampling.desktops * max(kept) <= sampling.image_cache else sum(kept)


def preparation_seconds(episode: EpisodeShape, grid: Grid, episodes: int, passes: int, sampling: Sampling) -> float:
    """CPU seconds of one thread for the screenshots of an iteration: its rollouts and ``passes`` over its rows."""
    trained = passes * sum(sequence.images for sequence in episode.sequences())
    return episodes * (images_prepared(episode, sampling) + trained) * grid.patches * SECONDS_PER_PATCH


def cached_features(model: ModelShape, grid: Grid, element: int, size: int) -> int:
    """Number of screenshots whose features the built-in sampler keeps in a cache of ``size`` bytes."""
    return size // (math.ceil(grid.patches / model.vision.merge**2) * model.text.hidden * element)
