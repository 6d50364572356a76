"""The scalar outputs of a loss (losses to minimise, metrics), and how those of micro-batches are merged."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tensordict import TensorClass
from torchrl.objectives.llm.grpo import LLMLossOutput

from bepa_torchrl import functional as F
from bepa_torchrl.losses.inputs import LossInputs, Objective

#: metrics that every loss but SFTLoss returns
METRICS = (
    "clip_fraction",
    "kl_approx",
    "ESS",
    "units",
    "units_off_policy",
    "off_policy_fraction",
    "ratio_mean_on_policy",
    "ratio_max_on_policy",
    "ratio_mean_off_policy",
    "ratio_max_off_policy",
    "log_prob_on_policy",
    "log_prob_off_policy",
)

#: further metrics if the loss reads the sampler's log-probabilities (``rollout_correction``)
ROLLOUT_METRICS = ("rollout_kl_on_policy", "rollout_difference_max_on_policy", "rollout_weight_mean_on_policy")


class BEPALossOutput(LLMLossOutput):
    """Scalars ``[]``. Sum and minimise the entries named ``loss_*``; the others are detached metrics.

    Metrics are over the units (response tokens, or steps) of the rows passed to ``forward``, excluding padding. For
    those of a whole optimiser step see :func:`bepa_torchrl.losses.merge_outputs` and
    :func:`bepa_torchrl.training.optimization_step.gradient_step`.

    - ``clip_fraction``: share of all units whose clipped branch is the larger loss
      (:func:`bepa_torchrl.functional.clip_binds`, as verl counts); units without a clip count as not clipped;
    - ``kl_approx``: mean of ``r - 1 - log r`` over on-policy units; ``ESS``: over all units, in (0, 1];
    - ``ratio_*``, ``log_prob_*``: means and maxima over on-policy or injected units;
    - ``units_anchor``, with ``anchor_weight`` only: units whose cross-entropy is ``loss_anchor``;
    - ``kl_to_ref``, with ``kl_weight`` only, and ``entropy``, with ``entropy_weight`` only: means over on-policy units
      of the k3 divergence from the base policy and of the entropy, in nats;
    - ``units_distill`` and ``distill_gate``, with ``distill_weight`` only: units of ``loss_distill``, their mean gate;
    - ``rollout_*``, with ``rollout_correction`` only: over on-policy units, with ``d`` the old log-prob minus the
      sampler's, the mean of ``exp(d) - 1 - d`` (estimates KL(sampler, old) in nats), the maximum of ``abs(d)``, and the
      mean importance weight.

    A mean or maximum over no unit (no off-policy row in this micro-batch) is NaN; :func:`merge_outputs` ignores
    such entries.
    """

    loss_sft: torch.Tensor | None = None
    loss_anchor: torch.Tensor | None = None
    units_anchor: torch.Tensor | None = None
    loss_distill: torch.Tensor | None = None
    units_distill: torch.Tensor | None = None
    distill_gate: torch.Tensor | None = None  # mean over these units
    units: torch.Tensor | None = None  # response tokens (or steps) of the batch
    units_off_policy: torch.Tensor | None = None
    off_policy_fraction: torch.Tensor | None = None  # of the units
    ratio_mean_on_policy: torch.Tensor | None = None
    ratio_max_on_policy: torch.Tensor | None = None
    ratio_mean_off_policy: torch.Tensor | None = None
    ratio_max_off_policy: torch.Tensor | None = None
    log_prob_on_policy: torch.Tensor | None = None  # mean, nats
    log_prob_off_policy: torch.Tensor | None = None
    rollout_kl_on_policy: torch.Tensor | None = None
    rollout_difference_max_on_policy: torch.Tensor | None = None
    rollout_weight_mean_on_policy: torch.Tensor | None = None


class SFTLossOutput(TensorClass["nocast"]):  # type: ignore[name-defined]
    """Scalars ``[]`` of supervised fine-tuning; every row counts as off-policy."""

    loss_sft: torch.Tensor
    units: torch.Tensor
    units_off_policy: torch.Tensor
    log_prob_off_policy: torch.Tensor  # mean, nats


@torch.no_grad()
def diagnostics(inputs: LossInputs, objective: Objective) -> dict[str, torch.Tensor]:
    """The metrics as scalars; keys are fields of :class:`BEPALossOutput`."""
    ratio = F.ratio(inputs.log_ratio)
    off = inputs.mask & inputs.off_policy
    on = inputs.mask & ~inputs.off_policy
    return {
        "clip_fraction": F.clip_fraction(objective.clipped, inputs.mask),
        "kl_approx": F.approximate_kl(inputs.log_ratio, on),
        "ESS": F.effective_sample_size(inputs.log_ratio, inputs.mask),
        "units": inputs.mask.sum().float(),
        "units_off_policy": off.sum().float(),
        "off_policy_fraction": off.sum() / inputs.mask.sum().clamp_min(1),
        "ratio_mean_on_policy": F.masked_mean(ratio, on),
        "ratio_max_on_policy": F.masked_max(ratio, on),
        "ratio_mean_off_policy": F.masked_mean(ratio, off),
        "ratio_max_off_policy": F.masked_max(ratio, off),
        "log_prob_on_policy": F.masked_mean(inputs.log_prob, on),
        "log_prob_off_policy": F.masked_mean(inputs.log_prob, off),
    }


@torch.no_grad()
def rollout_diagnostics(inputs: LossInputs, weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """:data:`ROLLOUT_METRICS` as scalars; nothing if the loss does not read the sampler's log-probabilities."""
    if inputs.rollout_difference is None:
        return {}
    on, difference = inputs.mask & ~inputs.off_policy, inputs.rollout_difference
    values = (F.approximate_kl(difference, on), F.masked_max(difference.abs(), on), F.masked_mean(weight, on))
    return dict(zip(ROLLOUT_METRICS, values, strict=True))


def merge_outputs(outputs: Sequence[BEPALossOutput | SFTLossOutput]) -> dict[str, float]:
    """Merges the outputs of the micro-batches of one optimiser step.

    Losses and counts are summed, maxima are maxima, means are weighted by the number of units they were taken over;
    ``ESS`` is that of all units together. Entries that are missing or NaN in all micro-batches are left out, except
    losses: one that is NaN in a micro-batch is NaN.
    """
    return merge_metrics([{key: value.item() for key, value in out.to_tensordict().items()} for out in outputs])


def merge_metrics(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    """:func:`merge_outputs` for outputs that are dicts of floats."""
    merged: dict[str, float] = {}
    for key in dict.fromkeys(key for table in tables for key in table):
        pairs = [(table[key], _weight(key, table)) for table in tables if key in table]
        if not key.startswith("loss_"):
            pairs = [(value, weight) for value, weight in pairs if not math.isnan(value)]
        if not pairs:
            continue
        if key.startswith(("loss_", "units")):
            merged[key] = sum(value for value, _ in pairs)
        elif "_max_" in key:
            merged[key] = max(value for value, _ in pairs)
        elif key == "ESS":
            merged[key] = _effective_sample_size([table for table in tables if table["units"] > 0])
        else:
            merged[key] = sum(value * weight for value, weight in pairs) / max(sum(w for _, w in pairs), 1.0)
    return merged


def _effective_sample_size(tables: Sequence[dict[str, float]]) -> float:
    """``(sum r)^2 / (n sum r^2)`` over the units of all tables; their own ESS gives each one's ``sum r^2``."""
    total = squares = units = 0.0
    for table in tables:
        off = table["units_off_policy"]
        counts = {"ratio_mean_on_policy": table["units"] - off, "ratio_mean_off_policy": off}
        ratios = sum(table[key] * count for key, count in counts.items() if count)
        total, units = total + ratios, units + table["units"]
        squares += ratios**2 / (table["units"] * table["ESS"])
    return total**2 / (units * squares)


def metrics_at_ratio_one(units: float, units_off_policy: float) -> dict[str, float]:
    """The metrics of rows whose ratios are 1 and whose advantage is 0, known without computing their log-probs."""
    table = {
        "clip_fraction": 0.0,
        "ESS": 1.0,
        "units": units,
        "units_off_policy": units_off_policy,
        "off_policy_fraction": units_off_policy / max(units, 1.0),
    }
    if units > units_off_policy:
        table |= {"kl_approx": 0.0, "ratio_mean_on_policy": 1.0, "ratio_max_on_policy": 1.0}
    if units_off_policy:
        table |= {"ratio_mean_off_policy": 1.0, "ratio_max_off_policy": 1.0}
    return table


def _weight(key: str, table: dict[str, float]) -> float:
    if "units" not in table:
        return 1.0
    if key == "distill_gate":
        return table["units_distill"]
    if key.endswith("_off_policy"):
        return table["units_off_policy"]
    if key.endswith("_on_policy") or key in ("kl_approx", "kl_to_ref", "entropy"):
        return table["units"] - table["units_off_policy"]
    return table["units"]
