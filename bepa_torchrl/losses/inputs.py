"""Input and output of a loss's ``_objective`` hook: rows as padded tensors, losses per unit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """A batch of rows, left-padded. A unit is a token, or with ``unit="step"`` a whole row (then T is 1).

    Args:
        log_prob: ``[B, T]`` nats, under the policy in training, with gradient; 0 where the mask is false.
        log_ratio: ``[B, T]`` ``log_prob`` minus the old one, or with ``ratio="sequence"`` its mean over the row;
            0 where the mask is false, and on off-policy rows whose old log-probabilities the loss does not read.
        advantage: ``[B, 1]``.
        mask: ``[B, T]`` bool, true for the units of the response.
        off_policy: ``[B, 1]`` bool, true for injected rows.
        rollout_difference: ``[B, T]`` nats, old log-probability minus that of the sampler; 0 on off-policy rows and
            where the mask is false; None if the loss does not read the sampler's.
        entropy: ``[B, T]`` nats, of each token's whole distribution, with gradient; None if the loss does not read it.
    """

    log_prob: Tensor
    log_ratio: Tensor
    advantage: Tensor
    mask: Tensor
    off_policy: Tensor
    rollout_difference: Tensor | None = None
    entropy: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Objective:
    """What ``_objective`` returns.

    Args:
        losses: per name (``loss_objective``, and ``loss_sft`` where there is one) ``[B, T]``, to be minimised; the
            loss masks them, divides each row by its denominator and sums.
        clipped: ``[B, T]`` bool, true where the clip binds (:func:`bepa_torchrl.functional.clip_binds`).
    """

    losses: dict[str, Tensor]
    clipped: Tensor
