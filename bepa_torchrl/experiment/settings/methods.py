"""The settings of methods: advantages, losses, caches, experts, fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bepa_torchrl.experiment.settings.kinds import AboveOne, Count, NonNegativeFloat, Positive, PositiveFloat, Text


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgoSettings:
    """The method.

    Args:
        name: name of the method, a key of :data:`bepa_torchrl.methods.METHODS`.
        preset: LUFFY only: the paper's form, or that of LUFFY's ``released`` code. The latter has no standard
            deviation, no on-policy clip, and ``sum_norm``, which requires ``loss.max_length``.
        gamma: LUFFY only: ``f(p) = p / (p + gamma)``.
        gain: ``prefix`` only: a task's prefix grows by ``gain * (1/2 - pass rate) * L`` steps after each group, L the
            steps of its trace.
    """

    name: Text
    preset: Literal["paper", "released"] = "paper"
    gamma: PositiveFloat = 0.1
    gain: PositiveFloat = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The surrogate and its aggregation (docs/definitions.md).

    Args:
        ratio: that of a token, or of the ``sequence``: GSPO's, from the mean log-ratio of each response's tokens. It
            stays far closer to 1, so that GSPO's ``loss.clip`` is ``[0.0003, 0.0004]``.
        clip: lower and upper clip range of the ratio, as ``[1 - low, 1 + high]``.
        dual_clip: bound of the loss for negative advantages, above 1; None: off.
        aggregation: how row losses are normalised, see :func:`bepa_torchrl.functional.row_denominators`.
        unit: the unit of a row's length, tokens or steps.
        max_length: length of the longest possible episode in units, for ``sum_norm`` only.
        rollout_correction: truncated importance weights for the difference between the sampler's and the old log-probs,
            per token or per response. They require ``train.old_log_probs=all``.
        rollout_cap: upper bound of these weights.
        anchor: weight of a cross-entropy on the policy's own successes in groups without an injected trace, mean over
            their tokens; 0: none (the paper).
        kl_weight: weight of the divergence (k3) from the base policy, the run's checkpoint, on the policy's own rows,
            normalised as the surrogate; 0: none (the paper). Its log-probs are computed once per row: with
            ``policy.lora`` by the same weights without adapters, else by a second copy of the model.
        entropy_weight: weight of the entropy of the tokens' distributions on the policy's own rows, normalised as the
            surrogate; 0: none (the paper).
        distill_weight: weight of gated plan distillation (SDAR) on the policy's own rows of tasks that have a plan,
            mean over their tokens; 0: none (the paper). It takes a further forward pass with the plan in the prompt.
        distill_beta: steepness of its gate.
    """

    ratio: Literal["token", "sequence"] = "token"
    clip: tuple[NonNegativeFloat, NonNegativeFloat] = (0.2, 0.3)
    dual_clip: AboveOne | None = None
    aggregation: Literal["group", "token", "sequence", "sum_norm", "seq-mean-token-sum", "seq-mean-token-mean"] = (
        "group"
    )
    unit: Literal["token", "step"] = "token"
    max_length: Positive | None = None
    rollout_correction: Literal["off", "token", "sequence"] = "off"
    rollout_cap: PositiveFloat = 2.0
    anchor: NonNegativeFloat = 0.0
    kl_weight: NonNegativeFloat = 0.0
    entropy_weight: NonNegativeFloat = 0.0
    distill_weight: NonNegativeFloat = 0.0
    distill_beta: PositiveFloat = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageSettings:
    """Group advantages.

    Args:
        kind: ``grpo`` (the paper); ``leave_one_out``: the return minus the mean of the other rollouts' (RLOO);
            ``maxrl``: divided by the mean return instead of the standard deviation.
        std: rule for the standard deviation by which those of ``grpo`` are divided; ``none``: no division.
        eps: number added to the standard deviation.
    """

    kind: Literal["grpo", "leave_one_out", "maxrl"] = "grpo"
    std: Literal["population", "bessel", "none"] = "population"
    eps: NonNegativeFloat = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The cache of traces.

    Args:
        rule: which success of a group enters the cache; ``all``: each of them, in slot order.
        min_successes: successes that a group must have to refresh the cache. It is 1 in the paper.
        refresh: what a success brings into the cache: ``trace``, itself (the paper); as controls ``wording``, new
            thoughts for the cached trace's actions, or ``actions``, its own with thoughts as with the expert's plan.
            For methods with one refreshed trace per task, with ``collect.mode=sync``.
        reword_tries: responses sampled per step for the thoughts of ``refresh=wording`` and ``actions``.
        injected_weight: factor of an injected trace's advantage: ``one`` (the paper), or ``need``, the share of the
            task's groups so far that had no success.
        injected_kept: whose advantages are kept in a group with an injected trace: ``all`` (the paper); as controls
            those of the ``trace``, or of the ``failures``, and the others are 0.
        max_tasks: maximum number of tasks in the cache; None: unlimited.
        seed: folder of ``selfroll`` or ``convert`` (docs/experts.md), whose traces of training tasks are D_self or
            D_conv; None: the run makes its own.
    """

    rule: Literal["random", "shortest", "highest_logprob", "all"] = "random"
    min_successes: Positive = 1
    refresh: Literal["trace", "wording", "actions"] = "trace"
    reword_tries: Positive = 4
    injected_weight: Literal["one", "need"] = "one"
    injected_kept: Literal["all", "trace", "failures"] = "all"
    max_tasks: Positive | None = None
    seed: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSettings:
    """Expert traces, plans and self-rollouts (docs/experts.md).

    Args:
        logs: sources of expert traces, the preferred first: NAME:FOLDER, ``auto:FOLDER``, or a folder of saved traces
            or logs; []: the tasks' own oracles are recorded.
        oracle_style: style of the actions and text of the tasks' oracles.
        plans: file of plans (FOLDER/plans.jsonl, docs/experts.md); None: by rule.
        plan_source: input of a plan by rule, the raw trace or the converted one.
        selfroll_attempts: maximum number of self-rollouts per task (LEVEL-1), which end with the first success.
        selfroll_budget: self-rollouts of all tasks together before training, instead of ``selfroll_attempts`` for each;
            None: no such budget. Unsolved tasks are tried again until it is spent (not in the paper).
        handover: steps that the policy acts without the plan before it gets it; 0: the plan is in every prompt (the
            paper).
        handover_loss: steps of a self-rolled trace that are trained on: ``all``, or those ``after`` the hand-over.
        reroll_every: iterations between further self-rollouts, by the current policy, of tasks without a cached trace;
            0: none (the paper). For methods that start from self-rollouts.
        reroll_stale: optimiser steps since its cached trace was sampled after which a task is self-rolled then as
            well; None: never.
        seed_from_converted: whether the converted trace seeds the cache where no self-rollout succeeded.
        max_leak: fraction of thoughts quoting the plan above which a self-rollout is rejected.
        pass_k: attempts of the base policy per task, which define the expert-only set.
        pass_k_file: ``pass_k.json`` of a split (docs/experts.md): the base policy's attempts at all tasks,
            which are its pass@k and its sampled evaluation before training; None: both are played.
    """

    logs: tuple[Text, ...] = ()
    oracle_style: Literal["expert", "native"] = "expert"
    plans: Text | None = None
    plan_source: Literal["raw", "converted"] = "raw"
    selfroll_attempts: Positive = 1
    selfroll_budget: Positive | None = None
    handover: Count = 0
    handover_loss: Literal["all", "after"] = "all"
    reroll_every: Count = 0
    reroll_stale: Positive | None = None
    seed_from_converted: bool = False
    max_leak: NonNegativeFloat = 1.0
    pass_k: Positive = 5
    pass_k_file: Text | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """Supervised fine-tuning on traces.

    Args:
        epochs: passes over the rows.
        batch: rows per optimiser step.
        lr: learning rate.
        weight: weight of the cross-entropy in ``rl_sft``.
    """

    epochs: Positive = 3
    batch: Positive = 16
    lr: NonNegativeFloat = 1e-6
    weight: NonNegativeFloat = 1.0
