"""The settings of iterations, checkpoints and the optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bepa_torchrl.experiment.settings.bounds import Count, Decay, NonNegativeFloat, Positive, PositiveFloat


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Iterations, batches and checkpoints.

    Args:
        iterations: iterations of collection and training.
        inner_epochs: passes over the rows of an iteration.
        minibatch_groups: groups per optimiser step; None: all of the iteration.
        max_tokens: tokens (prompt and response, padding included, shared prefixes once) per forward and backward pass;
            at least ``policy.max_prompt_tokens`` + ``policy.max_new_tokens``. The results do not depend on it.
        old_log_probs: source of the old log-probs: ``injected`` uses the sampler's for on-policy rows and computes
            those of injected rows, ``all`` computes every row's. Those that the loss does not read are not computed:
            injected rows' in LUFFY and RL+SFT, and with ``all`` any row's if an iteration takes a single optimiser step
            (all ratios are 1).
        frozen: substrings of parameter names; matching parameters are not trained.
        ranks: processes over which weights, gradients and the optimiser's state are divided (FSDP2), on one GPU each,
            ``cuda:0`` to ``cuda:N-1``, or on the CPU; 1: the method's process has all of them. The results do not
            depend on it, except for rounding (of 8-bit moments, in other blocks). Torchrun's number of processes, if it
            starts the run.
        nonfinite_steps: optimiser steps in a row that may have a gradient that is not finite, and are not taken; one
            more ends the run.
        rank_timeout: seconds until a rank that does not answer ends the run, with ``ranks`` above 1.
        save_every: iterations between checkpoints.
        keep: checkpoints kept, the newest ones.
    """

    iterations: Positive
    inner_epochs: Positive
    minibatch_groups: Positive | None
    max_tokens: Positive
    old_log_probs: Literal["injected", "all"]
    frozen: tuple[str, ...]
    ranks: Positive
    nonfinite_steps: Count
    rank_timeout: PositiveFloat
    save_every: Positive
    keep: Positive


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW.

    Args:
        kind: ``adamw``; ``adamw_8bit`` has moments of 8 bits, 2 bytes per trained parameter instead of 8, and requires
            the extra ``adam8bit``. Half-precision weights have float32 masters with both.
        lr: learning rate.
        vision_lr: the vision tower's learning rate, in supervised fine-tuning too; None: that of the other parameters.
            ``train.frozen=[visual]`` freezes the tower.
        betas: decay rates of the two moments.
        weight_decay: decoupled weight decay.
        clip_norm: maximum gradient norm.
    """

    kind: Literal["adamw", "adamw_8bit"]
    lr: NonNegativeFloat
    vision_lr: NonNegativeFloat | None
    betas: tuple[Decay, Decay]
    weight_decay: NonNegativeFloat
    clip_norm: PositiveFloat
