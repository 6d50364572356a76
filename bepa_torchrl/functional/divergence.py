"""Distance of a set of traces from the policy: token-probability histogram, tail mass, Jensen-Shannon divergence."""

from __future__ import annotations

import torch
from torch import Tensor

from osworld_gym.counts import check_count


def probability_histogram(log_prob_L: Tensor, *, bins: int = 50) -> Tensor:
    """Share of tokens in each of ``bins`` equal parts of [0, 1] by probability. Paper figure "histogram".

    Args:
        log_prob_L: ``[L]``, nats, log-probabilities of tokens (all <= 0 up to rounding), at least one.
        bins: number of bins; a probability on an inner edge is in the bin above it, 1 in the last.

    Returns:
        ``[bins]`` float64, sums to 1.

    Raises:
        ValueError: no token, one that is not a log-probability, or fewer than one bin.
    """
    probability = _probabilities(log_prob_L)
    check_count("bins", bins)
    index = (probability * bins).floor().long().clamp_max(bins - 1)
    return torch.bincount(index, minlength=bins).to(torch.float64) / probability.numel()


def tail_mass(log_prob_L: Tensor, *, threshold: float = 0.2) -> Tensor:
    """``Pr(p < threshold)`` over tokens, ``[]`` float64 in [0, 1]. Paper figure "histogram", the tail.

    Raises:
        ValueError: no token, or one that is not a log-probability.
    """
    return (_probabilities(log_prob_L) < threshold).to(torch.float64).mean()


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """``(KL(p, m) + KL(q, m)) / 2`` with ``m = (p + q) / 2``, natural logarithm, ``[]`` in [0, ln 2].

    Args:
        p: ``[K]`` non-negative weights, not all 0; normalised here, so counts are accepted.
        q: as ``p``.

    Raises:
        ValueError: shapes that differ, a negative or non-finite weight, or no positive weight.
    """
    if p.ndim != 1 or p.shape != q.shape:
        raise ValueError(f"expected two histograms [K]; got {tuple(p.shape)} and {tuple(q.shape)}")
    p, q = _normalised(p), _normalised(q)
    middle = (p + q) / 2
    return ((_kl_terms(p, middle) + _kl_terms(q, middle)).sum() / 2).clamp_min(0)


def _probabilities(log_prob: Tensor) -> Tensor:
    if log_prob.ndim != 1 or log_prob.numel() == 0:
        raise ValueError(f"expected log-probabilities [L] of at least one token; got {tuple(log_prob.shape)}")
    if log_prob.isnan().any() or (log_prob > 1e-4).any():
        raise ValueError(f"a log-probability is <= 0 and not NaN; got {log_prob.max().item()} as the largest")
    return log_prob.to(torch.float64).exp().clamp_max(1)


def _normalised(weights: Tensor) -> Tensor:
    weights = weights.to(torch.float64)
    if not weights.isfinite().all() or (weights < 0).any() or weights.sum() <= 0:
        raise ValueError(f"a histogram has finite weights >= 0, not all 0; got {weights.tolist()}")
    return weights / weights.sum()


def _kl_terms(p: Tensor, m: Tensor) -> Tensor:
    """``p log(p / m)`` with 0 log 0 = 0; m > 0 wherever p > 0."""
    return torch.where(p > 0, p * (torch.where(p > 0, p, 1.0) / torch.where(m > 0, m, 1.0)).log(), 0.0)
