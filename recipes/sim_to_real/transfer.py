"""How much of what was learnt on the twin is left on the real desktops: pure arithmetic on counts per task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bepa_torchrl.evaluation.statistics import paired_difference, success_interval
from bepa_torchrl.evaluation.success_rate import Evaluation


def transfer(real: Mapping[str, Evaluation], twin: Mapping[str, Evaluation], tasks: Sequence[str]) -> dict[str, Any]:
    """Success in [0, 1] on both kinds of desktop, with 95 % intervals over the tasks, and what it means.

    Args:
        real: evaluations on the real desktops: ``base``, ``after_real``, ``after_twin`` (where the policy was trained).
        twin: on the twin: ``base``, ``after_twin``.
        tasks: ids of the tasks.

    Returns:
        ``success``: desktop → policy → mean, low, high; ``gain_twin``, ``gain_real``: on the real desktops, over the
        base policy, by training on the twin or on them; ``ratio``: success after the twin / after the real desktops;
        ``gain_ratio``: the same of the gains. A ratio is None where its denominator is not positive.

    Raises:
        ValueError: a task has no valid episode.
    """
    scores = {name: [passes(evaluation, task) for task in tasks] for name, evaluation in real.items()}
    success = {
        "real": {name: asdict(success_interval(found)) for name, found in scores.items()},
        "twin": {
            name: asdict(success_interval([passes(found, task) for task in tasks])) for name, found in twin.items()
        },
    }
    gains = {
        f"gain_{name}": asdict(paired_difference(scores["base"], scores[f"after_{name}"])) for name in ("twin", "real")
    }
    means = {name: found["mean"] for name, found in success["real"].items()}
    return {
        "success": success,
        **gains,
        "ratio": _ratio(means["after_twin"], means["after_real"]),
        "gain_ratio": _ratio(gains["gain_twin"]["mean"], gains["gain_real"]["mean"]),
    }


def passes(evaluation: Evaluation, task: str) -> list[float]:
    """The outcomes of a task's episodes, successes first."""
    won, played = evaluation.counts[task]
    return [1.0] * won + [0.0] * (played - won)


def _ratio(one: float, other: float) -> float | None:
    return one / other if other > 0 else None


def report(found: Mapping[str, Any], recorded: Mapping[str, float]) -> list[str]:
    """The result as lines of text."""
    states, actions, repeated, differing, other = (
        round(recorded[name]) for name in ("states", "actions", "repeated", "differing", "other_starts")
    )
    lines = [
        f"twin: {recorded['tasks']:.0f} tasks, {states} states, {actions} known actions",
        f"{differing} of {repeated} repeated actions led to another screen than recorded",
        f"{other} episodes of a recorded seed began with another screen, and added nothing",
        "success, %           twin                real",
    ]
    for name, label in (("base", "base policy"), ("after_twin", "trained on twin"), ("after_real", "trained on real")):
        cells = [_cell(found["success"][where].get(name)) for where in ("twin", "real")]
        lines.append(f"{label:<20} {cells[0]:<19} {cells[1]}")
    for name, label in (("gain_twin", "twin"), ("gain_real", "real desktops")):
        lines.append(f"gain on real desktops by training on the {label}: {_cell(found[name])} points")
    for trial in found.get("trials", ()):
        lines.append(f"tried on the twin: {' '.join(trial['settings'])}: {100 * trial['success']:.1f} %")
    ratios = [f"{100 * found[name]:.0f} %" if found[name] is not None else "–" for name in ("ratio", "gain_ratio")]
    return [*lines, f"success after twin / after real: {ratios[0]}; of the gains: {ratios[1]}"]


def _cell(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "–"
    return f"{100 * found['mean']:.1f} ({100 * found['low']:.0f} to {100 * found['high']:.0f})"
