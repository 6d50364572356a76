"""The methods' losses: BEPALoss (GRPO's objective with per-row denominators) and subclasses; SFTLoss."""

from bepa_torchrl.losses.bepa import BEPALoss
from bepa_torchrl.losses.inputs import LossInputs, Objective
from bepa_torchrl.losses.luffy import LUFFY_PRESETS, LUFFYLoss, LuffyPreset
from bepa_torchrl.losses.output import BEPALossOutput, SFTLossOutput, merge_outputs
from bepa_torchrl.losses.rl_sft import RLSFTLoss
from bepa_torchrl.losses.sft import SFTLoss

__all__ = [
    "LUFFY_PRESETS",
    "BEPALoss",
    "BEPALossOutput",
    "LUFFYLoss",
    "LossInputs",
    "LuffyPreset",
    "Objective",
    "RLSFTLoss",
    "SFTLoss",
    "SFTLossOutput",
    "merge_outputs",
]
