"""RL+SFT loss: GRPO on the policy's rows plus cross-entropy on the expert's rows of the same tasks."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from bepa_torchrl.losses import terms
from bepa_torchrl.losses.bepa import BEPALoss
from bepa_torchrl.losses.inputs import LossInputs, Objective
from bepa_torchrl.losses.rows import entry_on_cpu, response_lengths


class RLSFTLoss(BEPALoss):
    """Minimises ``-J_GRPO + sft_weight * CE``. Paper appendix "RL with SFT Loss" (printed there with the wrong sign).

    Off-policy rows are the expert's: they contribute cross-entropy only (``loss_sft``), averaged over the response
    tokens of all such rows of the optimiser step; the others contribute GRPO's loss only (``loss_objective``). Without
    off-policy rows ``loss_sft`` is 0. They require no old log-probabilities, and their advantage is not used.

    Args:
        actor_network: as in :class:`BEPALoss`.
        sft_weight: lambda of the paper.
        **options: settings of :class:`BEPALoss`.

    Raises:
        ValueError: a weight that is negative or not finite, or as :class:`BEPALoss` raises.
    """

    off_policy_has_ratio = False
    loss_keys = ("loss_objective", "loss_sft")

    def __init__(self, actor_network: TensorDictModuleBase, *, sft_weight: float = 1.0, **options: Any) -> None:
        terms.check_weight("sft_weight", sft_weight)
        super().__init__(actor_network, **options)
        self.sft_weight = sft_weight

    def denominators(self, rows: TensorDictBase) -> Tensor:
        """``[R, 1]`` float32: as in :class:`BEPALoss` for on-policy rows; for the expert's, their response tokens."""
        lengths = response_lengths(rows, self.tensor_keys.action)
        off = entry_on_cpu(rows, self.tensor_keys.off_policy).bool()
        out = torch.empty(len(off), 1)
        if off.any():
            out[off] = float(lengths[off].sum().clamp_min(1))
        if not off.all():
            out[~off] = super().denominators(rows[~off])
        return out

    def _objective(self, inputs: LossInputs) -> Objective:
        grpo = super()._objective(inputs)
        nothing = torch.zeros_like(inputs.log_prob)
        losses = {
            "loss_objective": torch.where(inputs.off_policy, nothing, grpo.losses["loss_objective"]),
            "loss_sft": torch.where(inputs.off_policy, -self.sft_weight * inputs.log_prob, nothing),
        }
        return Objective(losses, grpo.clipped & ~inputs.off_policy)
