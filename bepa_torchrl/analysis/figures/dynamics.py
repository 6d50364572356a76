"""Training dynamics, and expert-only success beside the cache's update frequency. Paper figures of these names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from bepa_torchrl.analysis.figures.files import Row, shown
from bepa_torchrl.monitoring.curves import DOTS, WINDOW, series

#: column → metrics, the first of which an iteration has
DYNAMICS = {
    "entropy": ("collect/entropy",),
    "log_prob_on_policy_success": ("collect/log_prob_success",),
    "log_prob_off_policy": ("train/log_prob_off_policy", "train/log_prob_off_policy_rows_with_signal"),
    "injected_tail_mass": ("injected/tail_mass",),
    "injected_js": ("injected/js",),
    "injected": ("cache/injected",),
    "policy_version": ("policy_version",),
}
_PANELS = {
    "entropy": "entropy of the rollouts, nats",
    "log_prob_off_policy": "log-prob of injected traces, nats",
    "log_prob_on_policy_success": "log-prob of successful rollouts, nats",
    "injected_js": "JS of injected traces, nats",
}


def dynamics_rows(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Method, iteration, and the columns of :data:`DYNAMICS`; None where a metric is not recorded.

    Args:
        methods: label → lines of ``iterations.jsonl``.
    """
    return [
        {"method": label, "iteration": int(line["iteration"])}
        | {name: next((line[key] for key in keys if key in line), None) for name, keys in DYNAMICS.items()}
        for label, lines in methods.items()
        for line in lines
        if line["phase"] == "rl"
    ]


def draw_dynamics(figure: Figure, rows: Sequence[Row]) -> None:
    """One panel per quantity, one line per method, averaged over five iterations."""
    for axis, (name, title) in zip(figure.subplots(2, 2).flat, _PANELS.items(), strict=True):
        for label in dict.fromkeys(str(row["method"]) for row in rows):
            iterations, values = series([row for row in rows if row["method"] == label], name, WINDOW)
            if values:
                axis.plot(
                    iterations, values, label=shown(label), marker="o" if len(values) < DOTS else None, markersize=4
                )
        axis.set(title=f"{title}, mean of {WINDOW}", xlabel="iteration")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend()


def assimilation_rows(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Success on expert-only tasks where it was evaluated, and the share of groups that refreshed the cache.

    Args:
        methods: label → lines of ``iterations.jsonl``.
    """
    rows: list[Row] = []
    for label, lines in methods.items():
        evaluated = {int(line["iteration"]): line["eval/expert_only"] for line in lines if "eval/expert_only" in line}
        trained = {int(line["iteration"]): line for line in lines if line["phase"] == "rl"}
        for iteration in sorted(trained.keys() | evaluated.keys()):
            line = trained.get(iteration, {})
            refreshed, groups = line.get("cache/refreshed"), line.get("groups")
            share = refreshed / groups if groups and refreshed is not None else None
            rows.append(
                {
                    "method": label,
                    "iteration": iteration,
                    "expert_only": evaluated.get(iteration),
                    "update_frequency": share,
                }
            )
    return rows


def draw_assimilation(figure: Figure, rows: Sequence[Row]) -> None:
    """One panel per method: expert-only success (left axis) and update frequency (right axis)."""
    labels = list(dict.fromkeys(str(row["method"]) for row in rows))
    for axis, label in zip(figure.subplots(1, len(labels), squeeze=False)[0], labels, strict=True):
        own = [row for row in rows if row["method"] == label]
        axis.plot(*series(own, "expert_only"), color="tab:blue", marker="o", markersize=4)
        axis.set(title=shown(label), xlabel="iteration", ylim=(0, 1))
        axis.set_ylabel("success on expert-only tasks", color="tab:blue")
        other = axis.twinx()
        iterations, shares = series(own, "update_frequency", WINDOW)
        other.plot(iterations, shares, color="tab:orange", marker="o" if len(shares) < DOTS else None, markersize=4)
        other.set_ylim(0, 1)
        other.set_ylabel(f"groups that refresh the cache, mean of {WINDOW}", color="tab:orange")
