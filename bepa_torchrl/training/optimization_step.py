"""One optimiser step on the rows of complete groups, in micro-batches whose losses are summed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torchrl.objectives.common import LossModule
from torchrl.trainers.trainers import OptimizationStepper

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.packing import MAX_TOKENS, Pack, pack_rows
from bepa_torchrl.data.step_rows import groups_of, row_list, stack_rows
from bepa_torchrl.losses import BEPALoss, RLSFTLoss
from bepa_torchrl.losses.output import merge_metrics
from bepa_torchrl.policies.base import Learner
from bepa_torchrl.policies.finite import check_finite
from bepa_torchrl.policies.out_of_memory import optimizer_advice, token_budget_advice
from bepa_torchrl.training.finite import STEPS_IN_A_ROW, FiniteSteps, optimizer_tensors, warn_not_taken
from bepa_torchrl.training.rank_failures import rank_failures
from bepa_torchrl.training.step_metrics import SUFFIX, over_all_rows, rows_with_signal
from osworld_gym.counts import check_count

if TYPE_CHECKING:
    from bepa_torchrl.training.trainer import BEPATrainer

#: part of the names of the vision tower's parameters
VISION = "visual"
#: (loss, rows, max_tokens) → scalars of each micro-batch, and counts; adds the gradient of all rows to the parameters
Passes = Callable[[LossModule, Sequence[TensorDictBase], int], tuple[list[dict[str, float]], dict[str, float]]]


def minibatches(batch: TensorDictBase, groups: int | None) -> Iterator[TensorDictBase]:
    """Splits a batch of rows ``[R]`` into minibatches of ``groups`` complete groups (the last may be smaller).

    With None there is one minibatch of all groups.
    """
    every = [[row for episode in group for row in episode.rows] for group in groups_of(batch)]
    size = max(1, len(every)) if groups is None else groups
    for start in range(0, len(every), size):
        yield stack_rows(row for group in every[start : start + size] for row in group)


def has_signal(rows: TensorDictBase, loss: LossModule) -> list[bool]:
    """Which rows of ``[R]`` have a gradient: an advantage other than 0, or a term (cross-entropy, divergence …)."""
    supervised = isinstance(loss, RLSFTLoss)
    terms = loss.rows_with_terms(rows).tolist() if isinstance(loss, BEPALoss) else [False] * len(rows)
    return [
        term or bool(row.get(K.ADVANTAGE) != 0) or (supervised and bool(row.get(K.OFF_POLICY)))
        for row, term in zip(row_list(rows), terms, strict=True)
    ]


def sampled_by(rows: TensorDictBase, version: int) -> bool:
    """Whether the policy of this version sampled all on-policy rows; the old log-probs of injected rows are its own."""
    sampled = [row for row in row_list(rows) if not bool(row.get(K.OFF_POLICY))]
    return bool(sampled) and all(int(row[K.POLICY_VERSION]) == version for row in sampled)


def local_passes(
    loss: LossModule, rows: Sequence[TensorDictBase], max_tokens: int
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """All micro-batches in this process. Raises TokenBudgetError as :func:`gradient_step`."""
    packs = pack_rows(rows, max_tokens)
    outputs = accumulate(loss, rows, packs)
    counts = {"micro_batches": len(packs), "tokens_computed": sum(sum(pack.hosts) for pack in packs)}
    scalars = [{key: value.item() for key, value in output.to_tensordict().items()} for output in outputs]
    return scalars, {key: float(count) for key, count in counts.items()}


def gradient_step(
    loss: LossModule,
    optimizer: Optimizer,
    rows: TensorDictBase,
    *,
    keep: Sequence[bool] | None = None,
    at_old_policy: bool = False,
    max_tokens: int = MAX_TOKENS,
    clip_norm: float = 1.0,
    passes: Passes = local_passes,
) -> dict[str, float]:
    """One optimiser step on rows ``[R]``; the gradient is that of the whole batch for any token budget.

    Every row gets its denominator from ``loss.denominators`` first, so that rows left out by ``keep`` (their loss and
    gradient are exactly 0) still count in it, and micro-batches are summed; with ``loss.anchor_weight`` and
    ``loss.distill_weight`` its weight in these terms, too. If ``keep`` leaves no row, no step is taken; nor if the
    gradient or the loss is not finite, which
    is logged with the rows.

    Args:
        keep: which rows are computed; None: all.
        at_old_policy: whether the weights are still those of the rows' old log-probs (the first step on a batch); then
            the ratios of the rows left out are 1.
        max_tokens: tokens per forward and backward pass (:func:`bepa_torchrl.data.packing.pack_rows`).
        clip_norm: maximum gradient norm.
        passes: where the micro-batches are computed: in this process, or on several
            (:class:`bepa_torchrl.scale.sharding.gradient.ShardedPasses`).

    Returns:
        The merged scalars of the loss, and ``loss``, ``grad_norm`` (before clipping), ``rows``, ``rows_computed``,
        ``micro_batches``, and ``tokens_computed``: prompt and response tokens that went through the model, each
        shared prefix once. ``steps_not_finite``: 1 if the gradient or the loss was not finite, so that no step was
        taken.
        All are over the units (response tokens, or steps) of every row. With ``keep``, metrics that require log-probs
        under the current weights (``kl_approx``, ``ESS``, ``ratio_*``, ``log_prob_*``) are also returned over the
        units of the computed rows, as ``<name>_rows_with_signal``, and only so where
        :func:`~bepa_torchrl.training.step_metrics.over_all_rows` cannot know them for the rows left out.

    Raises:
        TokenBudgetError: a row is longer than ``max_tokens``, or the device is out of memory; no step is taken.
        DeviceMemoryError: the device has no room for the optimiser's state; the step is not complete.
        RankLostError: from ``passes`` on several ranks.
    """
    rows.set(K.DENOMINATOR, loss.denominators(rows))
    if isinstance(loss, BEPALoss) and loss.anchor_weight:
        rows.set(K.ANCHOR, loss.anchor_weights(rows))
    if isinstance(loss, BEPALoss) and loss.distill_weight:
        rows.set(K.DISTILL, loss.distill_weights(rows))
    every = row_list(rows)
    used = every if keep is None else [row for row, wanted in zip(every, keep, strict=True) if wanted]
    counts = {"rows": float(len(every)), "rows_computed": float(len(used)), "steps_not_finite": 0.0}
    if not used:
        return {"loss": 0.0, "grad_norm": 0.0} | counts
    outputs, computed, norm = take_step(
        loss, optimizer, used, max_tokens=max_tokens, clip_norm=clip_norm, passes=passes
    )
    if not _taken(norm, outputs):
        warn_not_taken(norm, loss, used)
        counts["steps_not_finite"] = 1.0
    counts |= computed
    merged = merge_metrics(outputs)
    if keep is not None:
        measured = merged
        if len(used) < len(every):
            skipped = stack_rows(row for row, wanted in zip(every, keep, strict=True) if not wanted)
            unit = getattr(loss, "unit", "token")
            merged = over_all_rows(measured, skipped, unit=unit, at_old_policy=at_old_policy)
        merged |= rows_with_signal(measured)
    return merged | {"loss": total_loss([merged]), "grad_norm": norm} | counts


def total_loss(outputs: Sequence[dict[str, float]]) -> float:
    """The sum of all losses of a step's micro-batches."""
    return sum(value for output in outputs for key, value in output.items() if key.startswith("loss_"))


def _taken(norm: float, outputs: Sequence[dict[str, float]]) -> bool:
    """Whether a step is taken; both values are the same on every rank."""
    return math.isfinite(norm) and math.isfinite(total_loss(outputs))


def take_step(
    loss: LossModule,
    optimizer: Optimizer,
    rows: Sequence[TensorDictBase],
    *,
    max_tokens: int,
    clip_norm: float,
    passes: Passes,
) -> tuple[list[dict[str, float]], dict[str, float], float]:
    """The passes over rows that have their denominators, clipping, and the optimiser's step.

    If the gradient or the loss is not finite, weights and optimiser stay as they are; on every rank, since the norm is
    that of all shards, and the losses are those of all micro-batches.

    Returns:
        What ``passes`` returns, and the gradient's norm before clipping.

    Raises:
        RankLostError: the parameters are sharded, and another rank has exited or is late.
        DeviceMemoryError: the device has no room for the optimiser's state; the step is not complete.
    """
    optimizer.zero_grad(set_to_none=True)
    outputs, counts = passes(loss, rows, max_tokens)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with optimizer_advice("a step allocates the moments of", parameters):
        with rank_failures():
            norm = global_norm(torch.nn.utils.clip_grad_norm_(parameters, clip_norm))
        if _taken(norm, outputs):
            optimizer.step()
        else:
            optimizer.zero_grad(set_to_none=True)
    return outputs, counts, norm


def note_update(rows: TensorDictBase, version: int) -> None:
    """Adds an optimiser step to UPDATES of the rows ``[R]`` that were in it, those without a signal included.

    Args:
        rows: the rows of the step.
        version: the policy's after it.
    """
    update = torch.tensor([version])
    for row in row_list(rows):
        row.set(K.UPDATES, torch.cat([row.get(K.UPDATES).cpu(), update]) if K.UPDATES in row else update)


def global_norm(norm: Tensor) -> float:
    """A gradient norm over all shards, if the parameters are sharded."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def accumulate(loss: LossModule, rows: Sequence[TensorDictBase], packs: Sequence[Pack]) -> list[Any]:
    """Adds the gradient of each micro-batch to the parameters; returns the loss's output for each.

    Raises:
        TokenBudgetError: the device is out of memory.
    """
    outputs = []
    for pack in packs:
        with token_budget_advice(pack, loss):
            output = loss(stack_rows(rows[i] for i in pack.rows))
            terms = [value for key, value in output.to_tensordict().items() if key.startswith("loss_")]
            torch.stack(terms).sum().backward()
            outputs.append(output)
    return outputs


class GroupStepper(OptimizationStepper):
    """TorchRL's stepper for whole groups: :func:`gradient_step` on the rows that have a signal.

    Args:
        policy: its ``version`` counts the optimiser steps.
        optimizer: optimiser of the trained parameters.
        max_tokens: tokens per forward and backward pass.
        clip_norm: maximum gradient norm.
        passes: where micro-batches are computed (:func:`gradient_step`).
        nonfinite_steps: optimiser steps in a row that may have a gradient that is not finite.

    ``outputs`` collects one dict of scalars per optimiser step since :meth:`drain`.

    Raises:
        ValueError: ``max_tokens`` is no integer of at least 1, or ``nonfinite_steps`` none of at least 0.
    """

    def __init__(
        self,
        policy: Any,
        optimizer: Optimizer,
        *,
        max_tokens: int = MAX_TOKENS,
        clip_norm: float = 1.0,
        passes: Passes = local_passes,
        nonfinite_steps: int = STEPS_IN_A_ROW,
    ) -> None:
        check_count("max_tokens", max_tokens)
        check_count("nonfinite_steps", nonfinite_steps, 0)
        self.finite_steps = FiniteSteps(nonfinite_steps)
        self.policy, self.optimizer = policy, optimizer
        self.max_tokens, self.clip_norm, self.passes = max_tokens, clip_norm, passes
        self.outputs: list[dict[str, float]] = []

    def step(self, trainer: BEPATrainer, sub_batch: TensorDictBase) -> TensorDictBase:
        """One optimiser step on the rows of complete groups; returns ``loss`` and ``grad_norm`` as scalars ``[]``.

        No step is taken on a batch without rows, as of a ``GroupRows`` that has completed no group; both are then 0.

        Raises:
            NonFiniteError: the gradients of too many steps in a row were not finite.
        """
        if not len(sub_batch):
            return TensorDict({key: torch.tensor(0.0) for key in ("loss", "grad_norm")})
        loss = trainer.loss_module
        output = gradient_step(
            loss,
            self.optimizer,
            sub_batch,
            keep=has_signal(sub_batch, loss),
            at_old_policy=sampled_by(sub_batch, self.policy.version),
            max_tokens=self.max_tokens,
            clip_norm=self.clip_norm,
            passes=self.passes,
        )
        if output["rows_computed"] > 0 and not output["steps_not_finite"]:
            self.policy.version += 1
            note_update(sub_batch, self.policy.version)
        self.outputs.append(output)
        self.finite_steps.count(output)
        return TensorDict({key: torch.tensor(output[key]) for key in ("loss", "grad_norm")})

    def drain(self) -> dict[str, float]:
        """Metrics since the last call: means (maxima of ``*_max_*``) over the optimiser steps, and their number.

        Steps are weighted equally; maxima are maxima. Steps that were not taken are counted, and in no mean. A metric
        that one of the steps knows for its rows with signal only is left out; the one named ``<name>_rows_with_signal``
        has every step.
        """
        outputs, self.outputs = self.outputs, []
        skipped = sum(output["steps_not_finite"] for output in outputs)
        used = [output for output in outputs if output["rows_computed"] > 0]
        taken = [output for output in used if not output["steps_not_finite"]]
        names = dict.fromkeys(key for output in taken for key in output if key != "steps_not_finite")
        means = {}
        for name in names:
            if any(name + SUFFIX in output and name not in output for output in taken):
                continue
            values = [output[name] for output in taken if name in output]
            means[name] = max(values) if "_max_" in name else sum(values) / len(values)
        return means | {
            "optimizer_steps": float(len(taken)),
            "optimizer_steps_without_signal": float(len(outputs) - len(used)),
            "optimizer_steps_not_finite": skipped,
        }

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state. Raises NonFiniteError if an element of it is not finite."""
        check_finite(optimizer_tensors(self.optimizer), "the optimiser's state")
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the optimiser's state."""
        self.optimizer.load_state_dict(state_dict["optimizer"])


def trainable(policy: Learner, *, frozen: Sequence[str] = ()) -> list[Tensor]:
    """The policy's trained parameters; freezes those whose name contains a string of ``frozen`` (e.g. ``visual``).

    A parameter that the policy itself has frozen (the base weights of adapters) stays frozen.

    Raises:
        ValueError: a string matches no parameter name.
    """
    return [parameter for _, parameter in _named_trainable(policy, frozen)]


def parameter_groups(
    policy: Learner, *, lr: float, vision_lr: float | None = None, frozen: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The trained parameters as an optimiser's groups, ``{"params": [...], "lr": ...}``.

    Args:
        policy: the policy; parameters are frozen as by :func:`trainable`.
        lr: learning rate.
        vision_lr: the vision tower's learning rate, as a second group; None: one group with ``lr``.
        frozen: substrings of the names of parameters that are not trained.

    Raises:
        ValueError: a string of ``frozen`` matches no parameter name; or ``vision_lr`` is set and no parameter of the
            vision tower is trained.
    """
    named = _named_trainable(policy, frozen)
    if vision_lr is None:
        return [{"params": [parameter for _, parameter in named], "lr": lr}]
    vision = [parameter for name, parameter in named if VISION in name]
    if not vision:
        raise ValueError(
            f"optimizer.vision_lr={vision_lr:g} requires a trained vision tower, and all parameters named *{VISION}* "
            "are frozen; set optimizer.vision_lr=null, or train the tower (train.frozen=[], no policy.lora)"
        )
    others = [parameter for name, parameter in named if VISION not in name]
    return [{"params": others, "lr": lr}, {"params": vision, "lr": vision_lr}]


def _named_trainable(policy: Learner, frozen: Sequence[str]) -> list[tuple[str, Tensor]]:
    names = [name for name, _ in policy.named_parameters()]
    for part in frozen:
        if not any(part in name for name in names):
            raise ValueError(
                f"frozen={part!r} matches no parameter name; expected part of a name such as {', '.join(names[:3])} …"
            )
    for name, parameter in policy.named_parameters():
        if any(part in name for part in frozen):
            parameter.requires_grad_(False)
    return [(name, parameter) for name, parameter in policy.named_parameters() if parameter.requires_grad]
