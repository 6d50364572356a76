"""Builds a method's loss and optimiser from the settings, and decides which old log-probs it requires."""

from __future__ import annotations

from typing import Any

import torch
from tensordict.nn import TensorDictModuleBase

from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.losses import LUFFY_PRESETS, BEPALoss, LUFFYLoss, RLSFTLoss
from bepa_torchrl.methods import LossKind, Method
from bepa_torchrl.policies.base import Policy
from bepa_torchrl.training.optimization_step import parameter_groups
from bepa_torchrl.training.precision import make_adamw

#: the phases of a run on several ranks, each with its own loss and optimiser
FINE_TUNING, REINFORCEMENT = "fine_tuning", "reinforcement"


def scored_rows(old_log_probs: str, loss: BEPALoss) -> str:
    """The ``rows`` of :class:`OldLogProb`: rows whose old log-probs the loss reads and the sampler did not compute.

    Args:
        old_log_probs: the setting ``train.old_log_probs``.
    """
    if old_log_probs == "all":
        return loss.old_log_prob_rows
    return "injected" if loss.old_log_prob_rows == "all" else "none"


def make_method_loss(settings: Settings, algo: Method, policy: Policy) -> BEPALoss:
    """Builds the method's loss.

    With ``train.old_log_probs=all`` and a single optimiser step per iteration, pi_old is the policy in training, so the
    loss uses a ratio of 1 (``old_policy="current"``) and no old log-probs are computed. With ``injected`` the sampler's
    log-probs are the old ones, which may differ from the policy's.

    Raises:
        ValueError: settings that contradict each other.
    """
    preset = settings.algo.preset
    options: dict[str, Any] = {
        "luffy_preset": preset,
        "luffy_gamma": settings.algo.gamma,
        "sft_weight": settings.sft.weight,
        "clip_epsilon": settings.loss.clip,
        "unit": settings.loss.unit,
        "ratio": settings.loss.ratio,
        "dual_clip": settings.loss.dual_clip,
        "max_length": settings.loss.max_length,
        "rollout_correction": _rollout_correction(settings),
        "rollout_cap": settings.loss.rollout_cap,
        "anchor_weight": settings.loss.anchor,
        "kl_weight": settings.loss.kl_weight,
        "entropy_weight": settings.loss.entropy_weight,
        "distill_weight": settings.loss.distill_weight,
        "distill_beta": settings.loss.distill_beta,
        "keep_tokens": True,
        "old_policy": "current" if settings.old_policy_is_current else "stored",
    }
    if preset == "paper":  # LUFFY's released preset has its own aggregation
        options["aggregation"] = settings.loss.aggregation
    return make_loss(algo, policy, **options)


def make_loss(
    algo: Method,
    policy: TensorDictModuleBase,
    *,
    luffy_preset: str = "paper",
    luffy_gamma: float = 0.1,
    sft_weight: float = 1.0,
    **options: Any,
) -> BEPALoss:
    """The method's loss; ``options`` are those of :class:`~bepa_torchrl.losses.BEPALoss`.

    Args:
        luffy_preset: ``paper`` or ``released``; for LUFFY only, like ``luffy_gamma``.
        sft_weight: weight of the cross-entropy; for RL+SFT only.
    """
    if algo.loss is LossKind.luffy:
        return LUFFYLoss(policy, preset=luffy_preset, gamma=luffy_gamma, **options)
    if algo.loss is LossKind.rl_sft:
        return RLSFTLoss(policy, sft_weight=sft_weight, **options)
    return BEPALoss(policy, **options)


def advantage_std(algo: Method, std: str, *, luffy_preset: str = "paper") -> str:
    """The rule for the standard deviation: the setting's, or the preset's for LUFFY."""
    return LUFFY_PRESETS[luffy_preset].advantage_std if algo.loss is LossKind.luffy else std


def make_optimizer(settings: Settings, policy: Policy, *, lr: float | None = None) -> torch.optim.Optimizer:
    """Builds AdamW for the trained parameters; ``lr`` replaces ``optimizer.lr`` (supervised fine-tuning).

    Raises:
        ValueError: ``train.frozen`` or ``optimizer.vision_lr`` does not fit the policy's parameters.
        MissingExtraError: ``optimizer.kind`` requires bitsandbytes, which is not installed.
    """
    optimizer = settings.optimizer
    groups = parameter_groups(
        policy,
        lr=optimizer.lr if lr is None else lr,
        vision_lr=optimizer.vision_lr,
        frozen=settings.train.frozen,
    )
    return make_adamw(groups, kind=optimizer.kind, betas=optimizer.betas, weight_decay=optimizer.weight_decay)


def _rollout_correction(settings: Settings) -> str:
    """The loss's ``rollout_correction``: where other weights or kernels sample, the difference is always measured."""
    chosen, stale = settings.loss.rollout_correction, settings.collect.max_staleness > 0
    other = settings.policy.rollout != "transformers" or (stale and settings.train.old_log_probs == "all")
    return "measure" if chosen == "off" and other else chosen
