"""Time of rollouts on the GPU that samples: the batches that can be formed, what its caches hold, the images prepared.

At step t of an episode every desktop's prompt has about the same length, so that the rows of a batch follow from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from bepa_torchrl.sizing.duration import decode_speed
from bepa_torchrl.sizing.flops import Flops, forward
from bepa_torchrl.sizing.gpus import Gpu
from bepa_torchrl.sizing.model import ModelShape
from bepa_torchrl.sizing.tokens import EpisodeShape, Grid

#: least seconds per decoded token of a batch of the built-in sampler, which starts every kernel from Python; estimated
#: by reading the code, not measured on a GPU
SAMPLER_STEP = 0.03
#: CPU seconds to decode and resize a screenshot, per patch (0.06 s for the 10,764 of 1932x1092 on one core)
SECONDS_PER_PATCH = 0.06 / 10_764
#: CPU seconds of one thread to cut a prepared screenshot into an engine's patches, per patch; a GPU does it by itself
CUT_SECONDS_PER_PATCH = 0.04 / 10_764
#: bytes of patches that are kept for an engine (:mod:`bepa_torchrl.scale.engine.inputs`)
ENGINE_PATCHES = 1 << 30
#: bytes of a screenshot's PNG, which is kept with its pixels
PNG_BYTES = 500_000


@dataclass(frozen=True, slots=True)
class Sampling:
    """What samples.

    Args:
        desktops: episodes that run at once.
        max_rows: maximum rows of a batch.
        max_batch_tokens: maximum tokens of a batch of the built-in sampler, padding and responses of the maximum length
            included; None: an engine, whose prompts are computed in pieces.
        max_new_tokens: maximum tokens of a response.
        cached_token: bytes of a token in the key-value cache.
        cache: bytes of key-value cache for the rows that are decoded, and with an engine for past turns.
        keeps_prefixes: whether past turns stay in the cache while it has room.
        step_seconds: least seconds per decoded token of a batch.
        image_cache: number of screenshots that need not be prepared again.
        image_threads: threads that prepare screenshots.
        patch_cache: number of screenshots whose patches are kept for an engine; None: no engine.
    """

    desktops: int
    max_rows: int
    max_batch_tokens: int | None
    max_new_tokens: int
    cached_token: int
    cache: int
    keeps_prefixes: bool
    step_seconds: float
    image_cache: int
    image_threads: int
    patch_cache: int | None

    def rows(self, tokens: int) -> int:
        """Rows of a batch of prompts of ``tokens`` tokens, at least 1."""
        limits = [self.desktops, self.max_rows, self.cache // (tokens * self.cached_token)]
        if self.max_batch_tokens is not None:
            limits.append(self.max_batch_tokens // (tokens + self.max_new_tokens))
        return max(1, min(limits))


def prefixes_fit(episode: EpisodeShape, sampling: Sampling) -> bool:
    """Whether the cache holds the longest row of every desktop.

    If it does not, nothing of it helps: turns come round in order, so that the least recently used block is the next
    that is asked for.
    """
    longest = max(row.tokens for row in episode.rows())
    return sampling.keeps_prefixes and sampling.desktops * longest * sampling.cached_token <= sampling.cache


def decode_seconds(
    model: ModelShape, device: Gpu, episode: EpisodeShape, episodes: int, sampling: Sampling, element: int
) -> float:
    """Seconds in which one GPU decodes the responses of ``episodes`` episodes of all their steps."""
    total = 0.0
    for step in range(1, episode.steps + 1):
        tokens = episode.prompt(step)
        rows = sampling.rows(tokens)
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


def images_prepared(episode: EpisodeShape, desktops: int, cache: int) -> int:
    """Screenshots of an episode that are prepared during its rollout.

    Once each if the cache has room for those of every desktop, otherwise all those of every prompt.
    """
    kept = [episode.kept_images(step) for step in range(1, episode.steps + 1)]
    return episode.steps if desktops * max(kept) <= cache else sum(kept)


def preparation_seconds(episode: EpisodeShape, grid: Grid, episodes: int, passes: int, sampling: Sampling) -> float:
    """Seconds for the screenshots of an iteration: its rollouts and ``passes`` over its rows, divided over the threads.

    The update finds them prepared if the cache holds those of the whole iteration. An engine's are also cut, by one.
    """
    trained = passes * sum(sequence.images for sequence in episode.sequences())
    if episodes * episode.steps <= sampling.image_cache:
        trained = 0
    images = episodes * (images_prepared(episode, sampling.desktops, sampling.image_cache) + trained)
    seconds = images * grid.patches * SECONDS_PER_PATCH / max(1, sampling.image_threads)
    if sampling.patch_cache is None:
        return seconds
    cut = episodes * images_prepared(episode, sampling.desktops, sampling.patch_cache)
    return seconds + cut * grid.patches * CUT_SECONDS_PER_PATCH


def cached_screenshots(grid: Grid, patch: int, gigabytes: float) -> int:
    """Number of decoded, resized screenshots that ``policy.image_cache_gb`` holds; ``patch`` is a patch's side."""
    return int(gigabytes * 1e9) // (3 * grid.patches * patch**2 + PNG_BYTES)
