"""Seeds: each random number is derived from the run's seed, a named stream and an integer key.

There is no shared generator, so random numbers do not depend on the order in which desktops finish, on batch
boundaries or on restarts. Streams are statistically independent (``numpy.random.SeedSequence`` with the stream and
the key as spawn key).

    derive_seed(seed, Stream.TASK_ORDER, epoch)
    key = episode_key(seed, Stream.ROLLOUT, iteration, task number, slot)    identifies an episode
    desktop_seed(key)                                                        seed of its desktop
    token_uniforms((*key, step), count)                                      uniforms that sample one response
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Stream(IntEnum):
    """Purpose of a random number. Values must never be reused for another purpose: resumed runs depend on them."""

    ROLLOUT = 1  #: training episodes, by (iteration, task number, slot)
    EVALUATION = 2  #: episodes of evaluations, by (0, task number, episode)
    SELF_ROLLOUT = 3  #: LEVEL-1's episodes, by (index of the expert, task number, attempt)
    EXPERT = 4  #: desktops of expert recordings, by (task number, attempt)
    FINE_TUNING = 5  #: order of the rows, by (epoch)
    TASK_ORDER = 6  #: order of the training tasks, by (epoch)
    CACHE_REFRESH = 7  #: the update rule U, by (task, count)
    CACHE_INJECTION = 8  #: the trace that is injected, of several, by (task, count)
    TASK_SPLIT = 9  #: selection of the expert-only tasks
    TINY_EVALUATION = 10  #: episodes that evaluate the tiny checkpoint, by (with plan, task number, slot)
    DESKTOP = 11  #: seed of a desktop, by episode key
    TOKENS = 12  #: sampling of a response, by episode key and step
    TWIN = 13  #: episodes that record a twin of a desktop, by (0, seed number, slot)
    REWORDING = 14  #: responses that reword a cached trace, by (group, step, try)


def derive_seed(seed: int, stream: Stream, *key: int) -> int:
    """A seed in [0, 2**31) that depends on the arguments only.

    Raises:
        ValueError: a negative integer.
    """
    return int(_sequence(seed, stream, key).generate_state(1)[0] >> 1)


class EpisodeKey(NamedTuple):
    """The seed key of one episode; a response's has its step in addition."""

    seed: int  #: seed of the stream
    round: int  #: the iteration, or another counter that the stream defines
    task: int  #: index of the task
    slot: int  #: index of the episode among those of the same task and round


def episode_key(seed: int, stream: Stream, round: int, task: int, slot: int) -> EpisodeKey:
    """The seed key of one episode.

    Args:
        seed: seed of the run.
        stream: purpose of the episode.
        round: the iteration, or another counter that the stream defines.
        task: index of the task.
        slot: index of the episode among those of the same task and round.
    """
    return EpisodeKey(derive_seed(seed, stream), round, task, slot)


def desktop_seed(key: Sequence[int]) -> int:
    """The desktop seed of an episode, or of a whole group when ``key`` omits the slot."""
    return derive_seed(key[0], Stream.DESKTOP, *key[1:])


def token_uniforms(key: Sequence[int], count: int) -> NDArray[np.float64]:
    """Uniforms in [0, 1), float64 ``[count]``; entry i samples token i and does not depend on ``count``.

    Args:
        key: seed key of the response (episode key and step): at least one integer, all >= 0.
        count: maximum number of tokens.

    Raises:
        ValueError: a negative integer.
    """
    return np.random.Generator(np.random.Philox(_sequence(key[0], Stream.TOKENS, key[1:]))).random(count)


def _sequence(seed: int, stream: Stream, key: Sequence[int]) -> np.random.SeedSequence:
    if seed < 0 or any(part < 0 for part in key):
        raise ValueError(f"a seed and its key must be integers >= 0; got {(seed, *key)}")
    # with the length, since SeedSequence treats (1,) and (1, 0) alike; int(), since it rejects tensor elements
    return np.random.SeedSequence(int(seed), spawn_key=(int(stream), len(key), *(int(part) for part in key)))
