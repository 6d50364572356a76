"""Selects tokens from logits and uniforms: the arithmetic of sampling that every backend shares.

A row's token depends on its logits, its uniform and the temperature only, so that backends with equal logits sample
equal tokens from equal seed keys (:func:`bepa_torchrl.data.seeding.token_uniforms`). Legend: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_cdf(logits: Tensor, uniforms: Tensor) -> Tensor:
    """Samples by inverse CDF: the token whose interval of the cumulative distribution contains the row's uniform.

    Args:
        logits: float32 ``[B, V]``, -inf at tokens that must not be sampled.
        uniforms: float64 ``[B]`` in [0, 1).

    Returns:
        int64 ``[B]``.
    """
    cdf = torch.softmax(logits, -1).double().cumsum(-1)
    total = cdf[:, -1]
    point = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, point[:, None], right=True).squeeze(-1)


def choose_tokens(logits: Tensor, uniforms: Tensor, temperature: float, blocked: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probs under softmax(logits / temperature), which includes blocked tokens.

    Args:
        logits: ``[B, V]`` of any floating type; unchanged.
        uniforms: float64 ``[B]`` in [0, 1), on the device of ``logits``; ignored at temperature 0.
        temperature: 0 selects the most likely allowed token, with its log-prob at temperature 1.
        blocked: int64 ``[K]``, tokens that are never chosen.

    Returns:
        int64 ``[B]``, and float32 ``[B]`` in nats.
    """
    logits = logits.float()
    allowed = logits.index_fill(-1, blocked, -torch.inf)
    chosen = allowed.argmax(-1) if temperature == 0 else inverse_cdf(allowed / temperature, uniforms)
    if temperature not in (0, 1):
        logits = logits / temperature
    log_probs = logits.gather(-1, chosen[:, None]).squeeze(-1) - logits.logsumexp(-1)
    return chosen, log_probs


def force_tokens(logits: Tensor, rows: Tensor, tokens: Tensor, values: Tensor) -> Tensor:
    """Leaves one finite logit in each of some rows, so that an engine's greedy choice is the given token.

    Args:
        logits: float32 ``[B, V]``, changed in place.
        rows: int64 ``[b]``, the rows to change.
        tokens: int64 ``[b]``, the token of each.
        values: float32 ``[b]``, its new logit. With the token's log-prob here, an engine that reports processed logits
            reports the log-prob.

    Returns:
        ``logits``.
    """
    logits[rows] = -torch.inf
    logits[rows, tokens] = values.to(logits.dtype)
    return logits
