"""Additional terms of the objective per token: divergence from the base policy, gated plan distillation."""

from __future__ import annotations

import torch
from torch import Tensor

from bepa_torchrl.functional.ratio import MAX_LOG_RATIO


def k3_divergence(log_prob: Tensor, base_log_prob: Tensor) -> Tensor:
    """``exp(d) - 1 - d`` with ``d = base_log_prob - log_prob``, same shape, >= 0: estimates KL(policy, base) in nats.

    Schulman's k3 estimator, as in GRPO (Shao et al. 2024, arXiv:2402.03300, eq. 4). Its mean over tokens sampled from
    the policy is unbiased. ``d`` is clamped to ±:data:`~bepa_torchrl.functional.ratio.MAX_LOG_RATIO`; beyond the bound
    the gradient is 0.
    """
    difference = (base_log_prob - log_prob).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


def gated_distillation(log_prob: Tensor, plan_log_prob: Tensor, *, beta: float) -> tuple[Tensor, Tensor]:
    """``g (plan_log_prob - log_prob)`` per token, and the gate ``g = sigmoid(beta (plan_log_prob - log_prob))``.

    SDAR (arXiv:2605.15155): a token that the policy finds more likely with the plan in its prompt is made more likely
    without it. Gate and ``plan_log_prob`` are detached, so the gradient is that of ``-g log_prob``.

    Args:
        log_prob: nats, of the prompt without the plan, with gradient.
        plan_log_prob: nats, of the same tokens with the plan in the prompt, same shape.
        beta: steepness of the gate, above 0.

    Returns:
        The term, with gradient, and the gate in (0, 1), without; both of the same shape.
    """
    target = plan_log_prob.detach()
    gate = torch.sigmoid(beta * (target - log_prob.detach()))
    return gate * (target - log_prob), gate
