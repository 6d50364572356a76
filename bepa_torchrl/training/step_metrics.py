"""Metrics of an optimiser step in which the rows without a signal were not computed."""

from __future__ import annotations

from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.losses.output import METRICS, ROLLOUT_METRICS, merge_metrics, metrics_at_ratio_one
from bepa_torchrl.losses.rows import entry_on_cpu, response_lengths

#: the suffix of metrics over the computed rows alone
SUFFIX = "_rows_with_signal"
#: metrics that require log-probs under the current weights
MEASURED = (
    *(name for name in METRICS if name.startswith(("kl_approx", "ESS", "ratio_", "log_prob_"))),
    *ROLLOUT_METRICS,
)


def rows_with_signal(measured: dict[str, float]) -> dict[str, float]:
    """The metrics that require current log-probs, as measured on the computed rows, under their name with SUFFIX."""
    return {name + SUFFIX: measured[name] for name in MEASURED if name in measured}


def over_all_rows(
    measured: dict[str, float], skipped: TensorDictBase, *, unit: str, at_old_policy: bool
) -> dict[str, float]:
    """The losses and metrics over the units of all rows of a step, as far as they are known without a forward pass.

    A skipped row has advantage 0 and no additional term, so that its losses are 0 and no clip binds: losses,
    ``clip_fraction``, ``units``, ``units_off_policy`` and ``off_policy_fraction`` are known exactly. While the weights
    are those of the old policy its ratios are 1, which adds ``kl_approx``, ``ESS`` and ``ratio_*``; later these are
    left out, as ``log_prob_*`` always are (the collector reports log-probs over all sampled rows), and ``rollout_*``.

    Args:
        measured: scalars of the computed rows, at least one.
        skipped: rows ``[S]`` that were not computed, at least one.
        unit: the loss's, ``token`` or ``step``.
        at_old_policy: whether the weights are still those that the old log-probs are from.
    """
    counts = response_lengths(skipped, K.RESPONSE_TOKENS)
    counts = (counts > 0).long() if unit == "step" else counts
    off = entry_on_cpu(skipped, K.OFF_POLICY).bool()
    known = metrics_at_ratio_one(float(counts.sum()), float(counts[off].sum()))
    unknown = {name for name in MEASURED if not at_old_policy or name.startswith(("log_prob_", "rollout_"))}
    merged = merge_metrics([measured, known])
    return {name: value for name, value in merged.items() if name not in unknown}
