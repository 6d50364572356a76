"""Token probabilities of trace sets, their tail mass and their distance from the rollouts. Paper figure "histogram".

Two sources: the record, whose log-probs are those of the policy at the time (an injected trace under the policy that it
was injected into, a rollout as it was sampled); or any policy that scores the traces, such as the base policy, as in
the paper (:func:`bepa_torchrl.analysis.figures.scored.scored_sets`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bepa_torchrl.analysis.figures.files import Row
from bepa_torchrl.analysis.records import MethodRecord
from bepa_torchrl.functional import jensen_shannon, probability_histogram, tail_mass

REFERENCE = "on_policy"  #: the set that the others are compared with
ORDER = ("raw_expert", "converted", "self_rolled", "refreshed", REFERENCE)
BINS = 20
LEFT_OUT = "steps_left_out"  #: column of the summary, if a set lacks steps


@dataclass(frozen=True, slots=True)
class TraceSets:
    """The log-probs of trace sets, and the steps that they lack.

    Args:
        log_probs: origin → ``[L]`` in nats, without origins that have no token.
        left_out: origin → reason → number of steps of its traces that are not in ``log_probs``.
    """

    log_probs: Mapping[str, Tensor]
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def recorded_sets(record: MethodRecord, tasks: Collection[str] | None = None) -> dict[str, Tensor]:
    """Log-probs ``[L]`` in nats by origin (:data:`ORDER`), without origins that have no token with a known log-prob.

    Rollouts are those of the iterations that are kept whole, if there are any: of the others a record has mostly those
    that were replaced, which all failed.

    Args:
        record: of a method.
        tasks: ids of the tasks whose episodes count; None: all.
    """
    log_probs: dict[str, list[float]] = {name: [] for name in ORDER}
    whole = whole_iterations(record)
    for line in record.lines():
        if tasks is not None and line["task_id"] not in tasks:
            continue
        origin = "refreshed" if line["off_policy"] and line["source"] == REFERENCE else line["source"]
        if origin == REFERENCE and whole and line["iteration"] not in whole:
            continue
        for step in line["steps"]:
            values = step["log_probs"]
            if line["off_policy"]:
                values = step.get("new_log_probs") or step.get("old_log_probs")
            log_probs[origin] += [value for value in values or () if value is not None]
    return {name: torch.tensor(values).clamp_max(0.0) for name, values in log_probs.items() if values}


def whole_iterations(record: MethodRecord) -> set[int | None]:
    """The iterations of which the record has the steps of every rollout."""
    rollouts = [episode for episode in record.episodes if not episode.off_policy]
    partial = {episode.iteration for episode in rollouts if episode.n_steps and not episode.whole}
    return {episode.iteration for episode in rollouts} - partial


def histogram_rows(sets: Mapping[str, Tensor]) -> list[Row]:
    """Set, lower and upper edge of each bin, and its share of the set's tokens."""
    rows: list[Row] = []
    for name, values in sets.items():
        shares = probability_histogram(values, bins=BINS).tolist()
        rows += [{"set": name, "from": i / BINS, "to": (i + 1) / BINS, "share": s} for i, s in enumerate(shares)]
    return rows


def summary_rows(sets: Mapping[str, Tensor], left_out: Mapping[str, Mapping[str, int]] | None = None) -> list[Row]:
    """Set, number of tokens, tail mass Pr(p < 0.2), and Jensen-Shannon divergence from the rollouts in nats.

    With ``left_out`` (of :class:`TraceSets`) also the number of its steps that are not in these, and a row for each set
    of which no step is left.
    """
    reference = probability_histogram(sets[REFERENCE]) if REFERENCE in sets else None
    rows: list[dict[str, Any]] = [
        {
            "set": name,
            "tokens": len(values),
            "tail_mass": float(tail_mass(values)),
            "js": None if reference is None else float(jensen_shannon(probability_histogram(values), reference)),
        }
        for name, values in sets.items()
    ]
    if not left_out:
        return list[Row](rows)
    rows += [{"set": name, "tokens": 0, "tail_mass": None, "js": None} for name in left_out if name not in sets]
    return [row | {LEFT_OUT: sum(left_out.get(row["set"], {}).values())} for row in rows]


def draw_histogram(figure: Figure, histogram: Sequence[Row], summary: Sequence[Row]) -> None:
    """The histograms, one panel per set, and the two measures beside them."""
    summary = [row for row in summary if row["tokens"]]
    names = [str(row["set"]) for row in summary]
    axes = figure.subplots(1, len(names) + 1, squeeze=False)[0]
    for axis, name in zip(axes, names, strict=False):
        rows = [row for row in histogram if row["set"] == name]
        edges = [*(row["from"] for row in rows), 1.0]
        axis.stairs([row["share"] for row in rows], edges, fill=True, alpha=0.7)
        axis.axvline(0.2, color="grey", linestyle="--", linewidth=1)
        without = next((row[LEFT_OUT] for row in summary if row["set"] == name and row.get(LEFT_OUT)), 0)
        title = f"{name}, {without} steps left out" if without else name
        axis.set(title=title, xlabel="token probability", yscale="log", xlim=(0, 1))
    axes[0].set_ylabel("share of tokens")
    places = range(len(names))
    axes[-1].bar([place - 0.2 for place in places], [row["tail_mass"] for row in summary], 0.4, label="Pr(p < 0.2)")
    axes[-1].bar([place + 0.2 for place in places], [row["js"] or 0.0 for row in summary], 0.4, label="JS, nats")
    axes[-1].set_xticks(list(places), names, rotation=30)
    axes[-1].set_title(f"distance from {REFERENCE}")
    axes[-1].legend()
