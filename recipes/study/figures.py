"""The figures of the results: learning curves and what drives them, as in the paper's figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import matplotlib

from osworld_gym.atomic import write_with
from recipes.study.estimates import Study, paired, rates_of
from recipes.study.records import Result
from recipes.study.variants import counted_self_rollouts

matplotlib.use("Agg")
from matplotlib import pyplot as plt


@dataclass(frozen=True)
class Panel:
    """One diagram: a metric of the curve against another one.

    Args:
        key: the metric on the vertical axis.
        title: the title of the diagram.
        against: the metric on the horizontal axis; means over seeds where it is not the iteration.
        rate: whether the vertical axis is 0 to 1.
    """

    key: str
    title: str
    against: str = "iteration"
    rate: bool = True


CURVES = (
    Panel("collect/success", "success of the rollouts, training tasks"),
    Panel("eval/train", "evaluation, training tasks"),
    Panel("eval/expert_only", "evaluation, expert-only tasks"),
    Panel("eval/held_out", "evaluation, held-out tasks"),
    Panel("eval/train", "evaluation, training tasks", against="total/optimizer_steps"),
    Panel("eval/train", "evaluation, training tasks", against="total/rollouts"),
    Panel("eval/expert_only", "evaluation, expert-only tasks", against="total/optimizer_steps"),
    Panel("eval/expert_only", "evaluation, expert-only tasks", against="total/rollouts"),
    Panel("eval/train", "evaluation, training tasks", against="total/seconds"),
)
DYNAMICS = (
    Panel("cache/refreshed", "cache entries refreshed per iteration", rate=False),
    Panel("cache/injected", "groups with an injected trace per iteration", rate=False),
    Panel("cache/js", "JS divergence of cache and rollouts, nats", rate=False),
    Panel("collect/entropy", "entropy, nats per token", rate=False),
    Panel("train/log_prob_off_policy", "log-prob of injected tokens, nats", rate=False),
    Panel("collect/log_prob_success", "log-prob of successful rollouts' tokens, nats", rate=False),
)
#: sets of tasks and variants as the figure of differences, which README shows, names them; others by their keys
SETS = {
    "train": "training tasks",
    "expert_only": "expert-only tasks",
    "held_out/known": "held-out, known kinds",
    "held_out/unknown": "held-out, unknown kinds",
}
NAMES = {
    "grpo": "GRPO",
    "bepa": "BEPA",
    "level1": "LEVEL-1",
    "level1_as_bepa": "LEVEL-1, BEPA's rate",
    "grpo_as_bepa": "GRPO, BEPA's rate",
    "bepa_as_grpo": "BEPA, GRPO's rate",
    "bepa_trace": "BEPA, the trace's part alone",
    "bepa_failures": "BEPA, the failures' part alone",
    "bepa_anchor": "BEPA with an anchor",
    "sft_self": "fine-tuning on LEVEL-1's traces",
}
LABELS = {
    "total/optimizer_steps": "updates",
    "total/rollouts": "rollouts, LEVEL-1's included",
    "total/seconds": "seconds, two runs at a time",
}


def draw(study: Study, names: Sequence[str], panels: Sequence[Panel], path: Path) -> None:
    """Draws the mean over seeds with the range of the seeds; a panel without a value stays empty.

    Args:
        study: all results.
        names: the variants to show.
        panels: the diagrams, three in a row.
        path: the path of the PNG file, written atomically.
    """
    rows = -(-len(panels) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(13, 3.6 * rows), constrained_layout=True, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for number, name in enumerate(names):  # a variant has one colour, also where another one has no points
            points = curve(study, name, panel)
            if points:
                at, middle, low, high = (list(column) for column in zip(*points, strict=True))
                axis.plot(at, middle, label=name, color=f"C{number}")
                axis.fill_between(at, low, high, alpha=0.15, color=f"C{number}", linewidth=0)
        axis.set(title=panel.title, xlabel=LABELS.get(panel.against, panel.against))
        if panel.rate:
            axis.set_ylim(0, 1)
        axis.grid(alpha=0.3)
    for unused in axes.flat[len(panels) :]:
        unused.set_visible(False)
    lines = {str(line.get_label()): line for axis in axes.flat for line in axis.lines}
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=min(len(lines), 6))
    write_with(path, lambda part: figure.savefig(part, dpi=110, format="png"))
    plt.close(figure)


def draw_differences(study: Study, names: Sequence[str], reference: str, parts: Sequence[str], path: Path) -> None:
    """Draws the paired differences to one method with their 95 % intervals, one diagram per set of tasks.

    Args:
        study: all results.
        names: the variants to show, from top to bottom; those without results of enough seeds are left out.
        reference: the method that is subtracted.
        parts: the sets of tasks.
        path: the path of the PNG file, written atomically.
    """
    shown = [name for name in names if name != reference and paired(study, name, reference, parts[0]) is not None]
    size = (13, 1.2 + 0.3 * len(shown))
    figure, axes = plt.subplots(1, len(parts), figsize=size, sharey=True, constrained_layout=True, squeeze=False)
    for axis, part in zip(axes.flat, parts, strict=True):
        axis.axvline(0, color="grey", linewidth=1)
        for row, name in enumerate(shown):
            found = paired(study, name, reference, part)
            if found is not None:
                low, middle, high = (100 * value for value in (found.low, found.mean, found.high))
                axis.plot([low, high], [row, row], color="C0" if found.sign else "C7", linewidth=2)
                axis.plot(middle, row, "o", color="C0" if found.sign else "C7")
        labels = [NAMES.get(name, name) for name in shown]
        axis.set(title=SETS.get(part, part), xlabel=f"points above {NAMES.get(reference, reference)}")
        axis.set_yticks(range(len(shown)), labels)
        axis.grid(alpha=0.3)
    axes.flat[0].invert_yaxis()
    write_with(path, lambda part: figure.savefig(part, dpi=110, format="png"))
    plt.close(figure)


def with_end(result: Result) -> list[Mapping[str, float]]:
    """The result's curve with ``total/rollouts``; its last point also has the evaluation at the end."""
    if not result.curve:
        return []
    before = counted_self_rollouts(result.variant, result.preparation)
    curve = [
        {**line, "total/rollouts": line["total/episodes"] + before} if "total/episodes" in line else line
        for line in result.curve
    ]
    rates = {f"eval/{part}": rates_of(result, part, base=False) for part in result.sets}
    end = {key: mean(found.values()) for key, found in rates.items() if found}
    return [*curve[:-1], {**curve[-1], **end}]


def curve(study: Study, name: str, panel: Panel) -> list[tuple[float, float, float, float]]:
    """Position, mean, minimum and maximum over seeds at each iteration that has the metric, by iteration.

    An evaluation that fewer seeds have than others is left out: runs that continue a shorter one were evaluated more
    often, and a mean over other seeds than at the iterations beside it would look like a change.
    """
    values: Mapping[float, list[float]] = defaultdict(list)
    positions: Mapping[float, list[float]] = defaultdict(list)
    for result in study.get(name, ()):
        for line in with_end(result):
            if panel.key in line and panel.against in line:
                values[line["iteration"]].append(line[panel.key])
                positions[line["iteration"]].append(line[panel.against])
    least = max(map(len, values.values()), default=0) if panel.key.startswith("eval/") else 1
    kept = sorted(i for i, found in values.items() if len(found) >= least)
    return [(mean(positions[i]), mean(values[i]), min(values[i]), max(values[i])) for i in kept]
