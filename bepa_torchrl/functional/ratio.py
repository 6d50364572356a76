"""The log of the importance ratio, per token, per response (GSPO) or per step."""

from __future__ import annotations

import torch
from torch import Tensor

RATIOS = ("token", "sequence")  #: :func:`log_ratio` of a token, or its :func:`response_mean`
CORRECTION_LEVELS = ("token", "sequence")  #: levels of :func:`truncated_importance`
#: largest absolute log ratio that is exponentiated, nats; above 88.7 float32 has no exp. Beyond it the gradient is 0.
#: The bound is verl's (``verl/trainer/ppo/core_algos.py``)
MAX_LOG_RATIO = 20.0


def log_ratio(log_prob_BT: Tensor, old_log_prob_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """``log r = log pi_theta - log pi_old`` where the mask is true, 0 elsewhere. Paper eq. bepa-obj, r_t.

    Args:
        log_prob_BT: ``[B, T]``, nats, under the policy in training.
        old_log_prob_BT: ``[B, T]``, nats, under the old policy; any value where the mask is false.
        mask_BT: ``[B, T]`` bool, response tokens.

    Returns:
        ``[B, T]``; no gradient flows from masked positions.
    """
    return torch.where(mask_BT, log_prob_BT, 0.0) - torch.where(mask_BT, old_log_prob_BT, 0.0)


def response_mean(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean log ratio of a row's tokens, at each of its tokens: the log of GSPO's sequence ratio ``s_i``.

    ``s_i = (pi_theta(y) / pi_old(y))^(1 / |y|)``: Zheng et al. 2025 (arXiv 2507.18071), eq. 7. A row is one response of
    the model, which in an episode of several steps is one step. The gradient of ``s_i`` is spread over the row's tokens
    evenly, as that of verl's ``compute_policy_loss_gspo``.

    Args:
        log_ratio_BT: ``[B, T]`` nats, from :func:`log_ratio`.
        mask_BT: ``[B, T]`` bool, response tokens.

    Returns:
        ``[B, T]``; 0 where the mask is false, and in rows without a token.
    """
    mean = torch.where(mask_BT, log_ratio_BT, 0.0).sum(-1, keepdim=True) / mask_BT.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(mask_BT, mean, 0.0)


def ratio(log_ratio: Tensor) -> Tensor:
    """``exp(log_ratio)`` of a log ratio clamped to ±:data:`MAX_LOG_RATIO`: finite, with a finite gradient.

    Without the clamp a token whose clipped branch is the loss has the gradient ``0 * inf`` once its ratio overflows.

    Args:
        log_ratio: any shape, nats; NaN stays NaN.
    """
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def truncated_importance(difference_BT: Tensor, mask_BT: Tensor, *, cap: float = 2.0, level: str = "token") -> Tensor:
    """Weights ``min(pi_old / pi_rollout, cap)`` that correct for tokens sampled by another implementation of pi_old.

    An inference engine computes slightly other log-probs than the trainer (kernels, half precision). Truncated
    importance sampling: Ionides 2008; both levels as in verl's rollout correction. Neither level is unbiased. The cap
    biases both, and a row is one step of an episode, so that ``sequence`` ignores how the episode's other steps were
    sampled; only for episodes of one step, and weights below the cap, is it the exact importance weight.

    Args:
        difference_BT: ``[B, T]`` nats, ``log pi_old - log pi_rollout`` of the sampled tokens.
        mask_BT: ``[B, T]`` bool, response tokens.
        cap: upper bound of a weight, above 0.
        level: ``token``: one weight per token; ``sequence``: one per row (step), from the sum over its tokens.

    Returns:
        ``[B, T]``, without gradient; 1 where the mask is false.

    Raises:
        ValueError: an unknown level, or a cap that is not positive.
    """
    if level not in CORRECTION_LEVELS:
        raise ValueError(f"level must be one of {', '.join(CORRECTION_LEVELS)}; got {level!r}")
    check_cap(cap)
    difference = torch.where(mask_BT, difference_BT.detach(), 0.0)
    if level == "sequence":
        difference = difference.sum(-1, keepdim=True).expand_as(difference)
    return torch.where(mask_BT, ratio(difference).clamp_max(cap), 1.0)


def check_cap(cap: float) -> None:
    """Raises ValueError if the cap of :func:`truncated_importance` is not positive."""
    if not cap > 0:
        raise ValueError(f"the cap of importance weights must be positive; got {cap}")


def per_step(values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Sums a row's log-probabilities, so that a step is one unit (``loss.unit=step``). Paper: t counts steps.

    Returns:
        ``[B, 1]`` sums and ``[B, 1]`` bool, true where the row has a token.
    """
    return torch.where(mask_BT, values_BT, 0.0).sum(-1, keepdim=True), mask_BT.any(-1, keepdim=True)
