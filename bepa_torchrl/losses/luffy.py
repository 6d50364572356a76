"""LUFFY's loss: on-policy rows as in GRPO, off-policy rows weighted by the shaped probability, without clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase

from bepa_torchrl import functional as F
from bepa_torchrl.functional.surrogate import check_gamma
from bepa_torchrl.losses.bepa import BEPALoss
from bepa_torchrl.losses.inputs import LossInputs, Objective


@dataclass(frozen=True, slots=True)
class LuffyPreset:
    """Settings in which the paper's description of LUFFY and LUFFY's released code differ.

    Args:
        on_policy_clip: whether on-policy ratios are clipped.
        advantage_std: ``std`` of :func:`bepa_torchrl.functional.group_advantage`, for the code that computes the
            advantages.
        aggregation: aggregation of the loss.
    """

    on_policy_clip: bool
    advantage_std: str
    aggregation: str


LUFFY_PRESETS = {
    "paper": LuffyPreset(on_policy_clip=True, advantage_std="population", aggregation="group"),
    "released": LuffyPreset(on_policy_clip=False, advantage_std="none", aggregation="sum_norm"),
}


class LUFFYLoss(BEPALoss):
    """``-f(pi_theta) A`` on off-policy rows, ``f(w) = w / (w + gamma)``; on-policy rows as in BEPALoss.

    Paper appendix LUFFY. Off-policy rows require no old log-probabilities (pi_phi = 1); their ratio is reported as 1.

    Args:
        actor_network: as in :class:`BEPALoss`.
        preset: ``paper`` or ``released``; a key of :data:`LUFFY_PRESETS`. It sets the on-policy clip and the
            aggregation (``released`` requires ``max_length``); the caller applies its ``advantage_std``.
        gamma: gamma of the shaping, above 0.
        **options: further settings of :class:`BEPALoss`; ``aggregation`` overrides the preset's.

    Raises:
        ValueError: an unknown preset, or as :class:`BEPALoss` raises.
    """

    off_policy_has_ratio = False

    def __init__(
        self, actor_network: TensorDictModuleBase, *, preset: str = "paper", gamma: float = 0.1, **options: Any
    ) -> None:
        if preset not in LUFFY_PRESETS:
            raise ValueError(f"preset must be one of {', '.join(LUFFY_PRESETS)}; got {preset!r}")
        if not LUFFY_PRESETS[preset].on_policy_clip and options.get("dual_clip") is not None:
            raise ValueError(f"preset={preset!r} clips no ratio, got dual_clip={options['dual_clip']}; leave one out")
        options.setdefault("aggregation", LUFFY_PRESETS[preset].aggregation)
        check_gamma(gamma)
        super().__init__(actor_network, **options)
        self.preset, self.gamma = LUFFY_PRESETS[preset], gamma

    def _objective(self, inputs: LossInputs) -> Objective:
        shaped = F.shaped_surrogate(inputs.log_prob, inputs.advantage, gamma=self.gamma)
        grpo = super()._objective(inputs)
        on_policy, clipped = grpo.losses["loss_objective"], grpo.clipped & ~inputs.off_policy
        if not self.preset.on_policy_clip:
            on_policy, clipped = F.surrogate(inputs.log_ratio, inputs.advantage), torch.zeros_like(clipped)
        return Objective({"loss_objective": torch.where(inputs.off_policy, shaped, on_policy)}, clipped)
