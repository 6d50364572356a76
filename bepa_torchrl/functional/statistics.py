"""Diagnostics of a loss over the response tokens; padding is excluded."""

from __future__ import annotations

import torch
from torch import Tensor

from bepa_torchrl.functional.ratio import MAX_LOG_RATIO


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values where the mask is true, ``[]``; NaN if it is true nowhere."""
    return torch.where(mask, values, 0.0).sum() / mask.sum()


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """Largest value where the mask is true, ``[]``; NaN if it is true nowhere."""
    kept = values[mask]
    return kept.max() if kept.numel() else values.new_full((), float("nan"))


def clip_fraction(clipped_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Fraction of tokens for which ``clipped_BT`` (bool) is true, ``[]`` in [0, 1]; 0 if there is no token."""
    return (clipped_BT & mask_BT).sum() / mask_BT.sum().clamp_min(1)


def approximate_kl(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean of ``(r - 1) - log r`` over tokens of the old policy, ``[]`` >= 0: estimates KL(old, new) in nats.

    Log ratios are clamped to ±:data:`~bepa_torchrl.functional.ratio.MAX_LOG_RATIO`.
    """
    clamped = log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return masked_mean(torch.expm1(clamped) - clamped, mask_BT)


def effective_sample_size(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """``(sum r)^2 / (n sum r^2)`` over the n tokens of the mask, ``[]`` in (0, 1]; NaN if there is none.

    Log ratios are clamped to ±:data:`~bepa_torchrl.functional.ratio.MAX_LOG_RATIO`.
    """
    kept = log_ratio_BT[mask_BT].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if kept.numel() == 0:
        return log_ratio_BT.new_full((), float("nan"))
    return (2 * kept.logsumexp(0) - (2 * kept).logsumexp(0)).exp() / kept.numel()


def token_entropy(logits_V: Tensor) -> Tensor:
    """Entropy in nats, ``[...]``, of the softmax of logits ``[..., V]``. Logits of -inf contribute 0."""
    log_probs = logits_V.log_softmax(-1)
    finite = torch.where(log_probs.isneginf(), 0.0, log_probs)  # before the product, whose gradient would be NaN
    return -(log_probs.exp() * finite).sum(-1)
