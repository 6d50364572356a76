"""The update rule U: which of a group's successes enters the cache. Paper section LEVEL-2, "Dynamic Updates"."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from tensordict import TensorDictBase

from bepa_torchrl.data import keys
from bepa_torchrl.data.seeding import Stream, derive_seed

RULES = ("random", "shortest", "highest_logprob", "all")  #: all: every success enters, in slot order (ARPO)


def choose(successes: Sequence[TensorDictBase], rule: str, *, seed: int, task_id: str, count: int) -> int:
    """The index of the success that the rule selects.

    ``random`` depends on (seed, task, count) only; ``shortest`` selects the fewest steps and ``highest_logprob`` the
    highest mean log-probability per response token under the behaviour policy, the first one in case of a tie.

    Args:
        successes: traces ``[S]`` of one task, at least one.
        rule: one of :data:`RULES` except ``all``.
        seed: seed of the cache.
        task_id: the task.
        count: how often this task has been refreshed before.
    """
    if rule == "shortest":
        return min(range(len(successes)), key=lambda i: len(successes[i]))
    if rule == "highest_logprob":
        return max(range(len(successes)), key=lambda i: mean_log_prob(successes[i]))
    return draw(len(successes), seed=seed, task_id=task_id, stream=Stream.CACHE_REFRESH, count=count)


def draw(n: int, *, seed: int, task_id: str, stream: Stream, count: int) -> int:
    """A number in [0, n) that depends on (seed, stream, task, count) only."""
    task = int.from_bytes(hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return derive_seed(seed, stream, task, count) % n


def mean_log_prob(trace: TensorDictBase) -> float:
    """Mean log-probability of the trace's response tokens as sampled, in nats.

    Raises:
        KeyError: a row has none.
    """
    if any(row.get(keys.ROLLOUT_LOG_PROB, None) is None for row in trace.unbind(0)):
        raise KeyError(f"rule=highest_logprob requires {keys.ROLLOUT_LOG_PROB!r} in every row; set it, or another rule")
    return float(torch.cat([row.get(keys.ROLLOUT_LOG_PROB) for row in trace.unbind(0)]).mean())
