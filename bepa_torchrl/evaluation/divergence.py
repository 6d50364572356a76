"""How far a trace cache is from the policy that it guides: the paper's histogram measures, during training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.cache.buffer import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.data.step_rows import is_trained, row_list
from bepa_torchrl.functional import jensen_shannon, probability_histogram, tail_mass
from bepa_torchrl.policies.base import Policy

_BATCH = 64  # rows per forward pass


def token_log_probs(policy: Policy, rows: Sequence[TensorDictBase]) -> Tensor:
    """float32 ``[L]``, nats: the log-probs of all response tokens of the rows under the policy.

    Raises:
        ValueError: no row.
    """
    if not rows:
        raise ValueError("expected at least one row whose response is scored, got none")
    turns = [(Prompt(row[K.PROMPT_TOKENS], tuple(row[K.IMAGES])), row[K.RESPONSE_TOKENS]) for row in rows]
    return turn_log_probs(policy, turns)


def turn_log_probs(policy: Policy, turns: Sequence[tuple[Prompt, Tensor]]) -> Tensor:
    """float32 ``[L]``, nats: the log-probs under the policy of the tokens of responses, each after its prompt.

    Args:
        policy: scores them.
        turns: at least one (prompt, int64 ``[L_i]`` tokens of its response).
    """
    log_probs = []
    with torch.no_grad():
        for start in range(0, len(turns), _BATCH):
            prompts, responses = zip(*turns[start : start + _BATCH], strict=True)
            log_probs += policy.response_log_probs(prompts, responses)[0]
    return torch.cat(log_probs)


def cache_divergence(policy: Policy, cache: TaskTraceCache, batch: TensorDictBase) -> dict[str, float]:
    """The distance of the cached traces from the rollouts of a batch; empty without a trace or a sampled row.

    Args:
        policy: the current policy, which scores the traces.
        cache: the traces, one per task.
        batch: a collector's rows ``[R]``; injected ones are left out, the others count with their log-probs as sampled.

    Returns:
        ``cache/js``: Jensen-Shannon divergence of the token probabilities' histograms, nats. ``cache/tail``: share of
        the cached traces' tokens with p < 0.2.
    """
    cached = [row for task_id in cache.task_ids() for row in row_list(cache.get_trace(task_id))]
    sampled = _sampled(row_list(batch))
    if not cached or not sampled:
        return {}
    scored = token_log_probs(policy, cached)
    js = jensen_shannon(probability_histogram(scored), probability_histogram(torch.cat(sampled)))
    return {"cache/js": float(js), "cache/tail": float(tail_mass(scored))}


def injected_divergence(batch: TensorDictBase) -> dict[str, float]:
    """The distance of an iteration's injected traces from its rollouts, from log-probs that the step computed anyway.

    Args:
        batch: rows ``[R]`` after the optimiser steps.

    Returns:
        ``injected/tail_mass``: share of the injected traces' tokens with p < 0.2 under the policy; ``injected/js``:
        Jensen-Shannon divergence from the rollouts' tokens as sampled, nats. Empty if nothing was injected, or if its
        log-probs are not computed (an advantage of 0, or ``loss.unit=step``).
    """
    rows = row_list(batch)
    injected = [row[K.LOG_PROB] for row in rows if bool(row[K.OFF_POLICY].any()) and K.LOG_PROB in row]
    sampled = _sampled(rows)
    if not injected or not sampled:
        return {}
    scored = torch.cat(injected)
    js = jensen_shannon(probability_histogram(scored), probability_histogram(torch.cat(sampled)))
    return {"injected/tail_mass": float(tail_mass(scored)), "injected/js": float(js)}


def _sampled(rows: Sequence[TensorDictBase]) -> list[Tensor]:
    """The log-probs as sampled of the policy's own rows, without injected and replayed ones."""
    return [row[K.ROLLOUT_LOG_PROB] for row in rows if is_trained(row) and not bool(row[K.OFF_POLICY].any())]
