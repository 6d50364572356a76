"""The settings of iterations, checkpoints and the optimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bepa_torchrl.experiment.settings.kinds import Count, Decay, NonNegativeFloat, Positive, PositiveFloat, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Iterations, batches and checkpoints.

    Args:
        iterations: iterations of collection and training.
        inner_epochs: passes over the rows of an iteration.
        minibatch_groups: groups per optimiser step; None: all of the iteration.
        max_tokens: tokens (prompt and response, padding included, shared prefixes once) per forward and backward pass.
            It bounds the memory and does not change the results; at least ``policy.max_prompt_tokens`` +
            ``policy.max_new_tokens``.
        old_log_probs: source of the old log-probs: ``injected`` uses the sampler's for on-policy rows and computes
            those of injected rows, ``all`` computes every row's. Those that the loss does not read are not computed:
            injected rows' in LUFFY and RL+SFT, and with ``all`` any row's if an iteration takes a single optimiser step
            (all ratios are 1).
        frozen: substrings of parameter names; matching parameters are not trained.
        ranks: processes, each with a GPU, over which weights, gradients and the optimiser's state are divided
            (docs/several-gpus.md). FSDP2 over ``cuda:0`` to ``cuda:N-1``, or on the CPU; with 1 the method's process
            has all of them. The results do not depend on it, except for rounding (of 8-bit moments, in other blocks).
            It is torchrun's number of processes, if that starts the run.
        gradient_sync: when the ranks sum their gradients, with ``ranks`` above 1: after each ``pass`` (a micro-batch of
            each rank), which keeps a rank's part of the gradient only; or once per ``step``, for slow networks: it
            sends less by the number of passes, and each GPU holds a whole float32 gradient, 33 GB for a 7B. The results
            differ by rounding.
        nonfinite_steps: optimiser steps in a row that may have a gradient that is not finite, and are not taken; one
            more ends the run.
        rank_timeout: seconds until a rank that does not answer ends the run, with ``ranks`` above 1.
        save_every: iterations between checkpoints.
        keep: number of checkpoints kept, the newest ones.
    """

    iterations: Positive = 36
    inner_epochs: Positive = 1
    minibatch_groups: Positive | None = None
    max_tokens: Positive = 8192
    old_log_probs: Literal["injected", "all"] = "all"
    frozen: tuple[Text, ...] = ()
    ranks: Positive = 1
    gradient_sync: Literal["pass", "step"] = "pass"
    nonfinite_steps: Count = 3
    rank_timeout: PositiveFloat = 600.0
    save_every: Positive = 10
    keep: Positive = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW.

    Args:
        kind: ``adamw_8bit`` has moments of 8 bits (requires the extra ``adam8bit``). They take 2 bytes per trained
            parameter instead of 8. Half-precision weights have float32 masters with both kinds.
        lr: learning rate.
        vision_lr: the vision tower's learning rate, in supervised fine-tuning too; None: that of the other parameters.
            ``train.frozen=[visual]`` freezes the tower.
        betas: decay rates of the two moments.
        weight_decay: decoupled weight decay.
        clip_norm: maximum gradient norm.
    """

    kind: Literal["adamw", "adamw_8bit"] = "adamw"
    lr: NonNegativeFloat = 1e-6
    vision_lr: NonNegativeFloat | None = None
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    weight_decay: NonNegativeFloat = 0.01
    clip_norm: PositiveFloat = 1.0
