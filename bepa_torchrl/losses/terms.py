"""The terms that a loss adds to its objective on the policy's own rows: divergence from the base, entropy, plans."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bepa_torchrl import functional as F
from bepa_torchrl.losses.inputs import LossInputs


def check_weight(name: str, weight: float) -> None:
    """Raises ValueError unless the weight of a term is a finite number of at least 0."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"{name} must be a finite number >= 0; got {weight}")


def own_tokens(inputs: LossInputs) -> Tensor:
    """``[B, T]`` bool: the response tokens of rows that the policy sampled."""
    return inputs.mask & ~inputs.off_policy


def summed(values: Tensor, chosen: Tensor, denominator: Tensor) -> Tensor:
    """``[]``: the values ``[B, T]`` where ``chosen``, summed per row, divided by its ``denominator [B, 1]``, summed."""
    return (torch.where(chosen, values, 0.0).sum(-1, keepdim=True) / denominator).sum()


def plan_distillation(
    inputs: LossInputs, plan: Tensor, share: Tensor, *, weight: float, beta: float
) -> dict[str, Tensor]:
    """``loss_distill``: ``weight`` times the mean of the gated differences to the log-probs with the plan.

    ``units_distill``: its tokens; ``distill_gate``: the mean gate.

    Args:
        inputs: units are tokens.
        plan: ``[B, T]`` nats, log-probs with the plan in the prompt; those of rows with share 0 are not used.
        share: ``[B, 1]``, 1 / (tokens of all rows with the term) on these rows, 0 on others.
        weight: the weight of the term.
        beta: the beta of :func:`bepa_torchrl.functional.gated_distillation`.
    """
    chosen = inputs.mask & (share > 0)
    target = torch.where(chosen, plan, 0.0)
    term, gate = F.gated_distillation(inputs.log_prob, target, beta=beta)
    return {
        "loss_distill": weight * (torch.where(chosen, term, 0.0) * share).sum(),
        "units_distill": chosen.sum().float(),
        "distill_gate": F.masked_mean(gate, chosen),
    }


def base_divergence(inputs: LossInputs, base: Tensor, denominator: Tensor, weight: float) -> dict[str, Tensor]:
    """``loss_kl_to_ref``: ``weight`` times the k3 divergence from the base policy; ``kl_to_ref``: its mean per token.

    Over the policy's own rows, normalised as the objective. The names are those of TorchRL's ``GRPOLoss``.

    Args:
        inputs: units are tokens.
        base: ``[B, T]`` nats, log-probs under the base policy; those of injected rows are not used.
        denominator: ``[B, 1]``, of the rows.
        weight: the weight of the term.
    """
    own = own_tokens(inputs)
    divergence = F.k3_divergence(inputs.log_prob, torch.where(own, base, 0.0))
    mean = F.masked_mean(divergence.detach(), own)
    return {"loss_kl_to_ref": weight * summed(divergence, own, denominator), "kl_to_ref": mean}


def entropy_bonus(inputs: LossInputs, entropy: Tensor, denominator: Tensor, weight: float) -> dict[str, Tensor]:
    """``loss_entropy``: minus ``weight`` times the entropy of each token's distribution; ``entropy``: its mean.

    Over the policy's own rows, normalised as the objective.

    Args:
        inputs: units are tokens.
        entropy: ``[B, T]`` nats, with gradient.
        denominator: ``[B, 1]``, of the rows.
        weight: the weight of the term.
    """
    own = own_tokens(inputs)
    mean = F.masked_mean(entropy.detach(), own)
    return {"loss_entropy": -weight * summed(entropy, own, denominator), "entropy": mean}
