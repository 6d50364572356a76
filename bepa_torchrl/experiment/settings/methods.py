"""The settings of methods: advantages, losses, caches, experts, fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from bepa_torchrl.experiment.settings.bounds import Above, Count, NonNegativeFloat, Positive, PositiveFloat


@dataclass(frozen=True, slots=True)
class AlgoSettings:
    """The method.

    Args:
        name: a key of :data:`bepa_torchrl.experiment.methods.METHODS`.
        preset: LUFFY only: the paper's form, or that of LUFFY's ``released`` code (no standard deviation, no
            on-policy clip, ``sum_norm``, which requires ``loss.max_length``).
        gamma: LUFFY only: ``f(p) = p / (p + gamma)``.
    """

    name: str
    preset: Literal["paper", "released"]
    gamma: PositiveFloat


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The surrogate and its aggregation (``docs/definitions.md``, losses and aggregation).

    Args:
        clip: lower and upper clip range of the ratio, as ``[1 - low, 1 + high]``.
        dual_clip: bound of the loss for negative advantages, above 1; None: off.
        aggregation: how row losses are normalised, see :func:`bepa_torchrl.functional.row_denominators`.
        unit: the unit of a row's length, tokens or steps.
        max_length: length of the longest possible episode in units; required by ``sum_norm``, otherwise None.
        rollout_correction: importance weights for the difference between the sampler's and the old log-probs, per token
            or per response; requires ``train.old_log_probs=all``.
        rollout_cap: upper bound of these weights.
    """

    clip: tuple[NonNegativeFloat, NonNegativeFloat]
    dual_clip: Annotated[float, Above(1)] | None
    aggregation: Literal["group", "token", "sequence", "sum_norm", "seq-mean-token-sum", "seq-mean-token-mean"]
    unit: Literal["token", "step"]
    max_length: Positive | None
    rollout_correction: Literal["off", "token", "sequence"]
    rollout_cap: PositiveFloat


@dataclass(frozen=True, slots=True)
class AdvantageSettings:
    """Group advantages.

    Args:
        std: rule for the standard deviation by which they are divided; ``none``: no division.
        eps: added to the standard deviation.
    """

    std: Literal["population", "bessel", "none"]
    eps: NonNegativeFloat


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The cache of traces.

    Args:
        rule: which success of a group enters the cache; ``all``: each of them, in slot order.
        min_successes: successes that a group must have to refresh the cache; 1 in the paper.
        injected_weight: factor of an injected trace's advantage: ``one`` (the paper), or ``need``, the share of the
            task's groups so far that had no success.
        max_tasks: maximum number of tasks in the cache; None: unlimited.
        seed: folder of ``bepa experts selfroll`` or ``convert``: its traces of training tasks are D_self or D_conv;
            None: the run makes its own.
    """

    rule: Literal["random", "shortest", "highest_logprob", "all"]
    min_successes: Positive
    injected_weight: Literal["one", "need"]
    max_tasks: Positive | None
    seed: str | None


@dataclass(frozen=True, slots=True)
class ExpertSettings:
    """Expert traces, plans and self-rollouts.

    Args:
        logs: sources of expert traces, the preferred first: ``agent_s2:FOLDER``, ``auto:FOLDER``, or a folder of
            saved traces or logs; empty: the tasks' own oracles are recorded.
        oracle_style: style of the actions and text of the tasks' oracles.
        plans: file of plans of ``bepa experts plan``; None: by rule.
        plan_source: input of a plan by rule, the raw trace or the converted one.
        selfroll_attempts: maximum number of self-rollouts per task (LEVEL-1), which end with the first success.
        selfroll_budget: self-rollouts of all tasks together before training, instead of ``selfroll_attempts`` for each:
            unsolved tasks are tried again until it is spent (not in the paper); None: no such budget.
        handover: steps that the policy acts without the plan before it gets it (not in the paper); 0: the plan is in
            every prompt.
        reroll_every: iterations between further self-rollouts, by the current policy, of tasks without a cached trace,
            for methods that start from self-rollouts; 0: none (the paper).
        reroll_stale: optimiser steps since its cached trace was sampled after which a task is self-rolled then as
            well; None: never.
        seed_from_converted: whether the converted trace seeds the cache where no self-rollout succeeded.
        max_leak: fraction of thoughts quoting the plan above which a self-rollout is rejected.
        pass_k: attempts of the base policy per task, which define the expert-only set.
    """

    logs: tuple[str, ...]
    oracle_style: Literal["expert", "native"]
    plans: str | None
    plan_source: Literal["raw", "converted"]
    selfroll_attempts: Positive
    selfroll_budget: Positive | None
    handover: Count
    reroll_every: Count
    reroll_stale: Positive | None
    seed_from_converted: bool
    max_leak: NonNegativeFloat
    pass_k: Positive


@dataclass(frozen=True, slots=True)
class SftSettings:
    """Supervised fine-tuning on traces.

    Args:
        epochs: passes over the rows.
        batch: rows per optimiser step.
        lr: learning rate.
        weight: weight of the cross-entropy in ``rl_sft``.
    """

    epochs: Positive
    batch: Positive
    lr: NonNegativeFloat
    weight: NonNegativeFloat
