"""``overview.png``: a finished run in three panels, for a reader who has not seen one before.

Success while training, success at the end, and what the groups of rollouts had to learn from.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

from bepa_torchrl.methods import METHODS
from bepa_torchrl.monitoring.curves import Line
from bepa_torchrl.rollout.injection import Injection
from bepa_torchrl.storage.json_lines import read_lines
from osworld_gym.atomic import write_with

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

FILE = "overview.png"
_NAMES = {"bepa": "BEPA", "grpo": "GRPO", "luffy": "LUFFY", "arpo": "ARPO", "level1": "LEVEL-1", "level2": "LEVEL-2"}
_SETS = {
    "train": "training\ntasks",
    "held_out": "held-out\ntasks",
    "expert_only": "training tasks\nsolved only with\nthe expert's plan",
}
#: what a group of rollouts is → its label and colour, from bottom to top
_KINDS = {
    "failed": ("all fail:\nnothing to learn", "#c4c4c4"),
    "injected": ("all fail, and a\ncached success\nreplaces one:\nlearns from it", "#7fb2dd"),
    "mixed": ("some succeed:\nlearns from the\ndifference", "#b5ddb0"),
    "solved": ("all succeed:\nnothing to learn", "#e8e8e8"),
}
_BASE = "#777777"


@dataclass(frozen=True)
class Overview:
    """What the picture shows. Success rates and shares are in [0, 1].

    Args:
        learning: method → iterations, and success of the rollouts as a mean over the ``window`` iterations until then.
        window: iterations in which every training task is played once.
        base: set of tasks → success of the base policy, sampled; without the sets that were not evaluated.
        final: method → set → success after training, sampled.
        tasks: set → number of its tasks.
        shown: the method whose groups are shown; "" if no method has any.
        iterations: of its groups.
        groups: kind of group → its share, mean over the ``window`` iterations until then; the kinds sum to 1.
        whole: kind of group → share of its groups over the whole training.
    """

    learning: Mapping[str, tuple[list[int], list[float]]]
    window: int
    base: Mapping[str, float]
    final: Mapping[str, Mapping[str, float]]
    tasks: Mapping[str, int]
    shown: str
    iterations: list[int]
    groups: Mapping[str, list[float]]
    whole: Mapping[str, float]

    @property
    def last(self) -> int:
        """The number of iterations; 0 for fine-tuning alone."""
        return max((iterations[-1] for iterations, _ in self.learning.values()), default=0)


def read_overview(folder: Path) -> Overview:
    """The overview of a finished run, from its ``results.json`` and the methods' ``iterations.jsonl``."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    lines = {name: _rollouts(read_lines(folder / name / "iterations.jsonl")) for name in results["methods"]}
    return overview_of(results, lines)


def _rollouts(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.get("groups")]


def overview_of(results: Mapping[str, Any], lines: Mapping[str, Sequence[Line]]) -> Overview:
    """The overview of a run.

    Args:
        results: its ``results.json``.
        lines: method → lines of iterations with groups, in order; none for fine-tuning alone.
    """
    tasks = {name: int(results["sets"][name]) for name in _SETS if results["sets"].get(name)}
    first = next((found[0] for found in lines.values() if found), {"groups": 1.0})
    window = max(1, round(tasks.get("train", 1) / float(first["groups"])))
    shown = next((name for name, found in lines.items() if found), "")
    kinds = [_kinds(line, results["methods"][shown]["algo"]) for line in lines.get(shown, ())]
    total = sum(sum(kind.values()) for kind in kinds)
    passes = _passes(lines.get(shown, ()), window)
    return Overview(
        learning={name: _learning(found, window) for name, found in lines.items() if found},
        window=window,
        base=_known(results["base"]["success"].get("sampled", {}), tasks),
        final={name: _known(found["success"].get("sampled", {}), tasks) for name, found in results["methods"].items()},
        tasks=tasks,
        shown=shown,
        iterations=[int(lines[shown][part.stop - 1]["iteration"]) for part in passes],
        groups={kind: [_share(kinds[part], kind) for part in passes] for kind in _KINDS},
        whole={kind: _share(kinds, kind) for kind in _KINDS} if total else {},
    )


def _passes(lines: Sequence[Line], window: int) -> list[slice]:
    """The parts of ``window`` lines, the last of which may be shorter."""
    return [slice(start, min(start + window, len(lines))) for start in range(0, len(lines), window)]


def _learning(lines: Sequence[Line], window: int) -> tuple[list[int], list[float]]:
    parts = [lines[part] for part in _passes(lines, window)]
    means = [mean(float(line["collect/success"]) for line in part) for part in parts]
    return [int(part[-1]["iteration"]) for part in parts], means


def _share(kinds: Sequence[Mapping[str, float]], kind: str) -> float:
    """The share of one kind among all groups of these iterations."""
    return sum(each[kind] for each in kinds) / sum(sum(each.values()) for each in kinds)


def _known(rates: Mapping[str, float | None], tasks: Mapping[str, int]) -> dict[str, float]:
    return {name: value for name in tasks if (value := rates.get(name)) is not None}


def _kinds(line: Line, algo: str) -> dict[str, float]:
    """Groups of one iteration by kind. Only where a trace replaces a failure it tells which failed groups learn."""
    on_failure = algo in METHODS and METHODS[algo].injection is Injection.on_failure
    failed, solved = float(line["groups_failed"]), float(line["groups_solved"])
    injected = float(line.get("cache/injected", 0.0)) if on_failure else 0.0
    mixed = float(line["groups"]) - failed - solved
    return {"failed": failed - injected, "injected": injected, "mixed": mixed, "solved": solved}


def name_of(method: str) -> str:
    """The name of a method for readers, such as ``GRPO``."""
    return _NAMES.get(method, method)


def caption(shown: Overview) -> str:
    """What there is to see, in one sentence of this run's own figures; "" if nothing was evaluated or rolled out."""
    rates = [f"{100 * rate['train']:.0f} % by {name_of(name)}" for name, rate in shown.final.items() if "train" in rate]
    before = f", from {100 * shown.base['train']:.0f} % before" if "train" in shown.base else ""
    after = f"after {shown.last} iterations" if shown.last else "after fine-tuning"
    parts = []
    if rates:
        parts.append(f"success on the {shown.tasks['train']} training tasks {after}: {', '.join(rates)}{before}")
    if shown.shown:
        failed = shown.whole["failed"] + shown.whole["injected"]
        parts.append(f"in {100 * failed:.0f} % of {name_of(shown.shown)}'s groups all rollouts failed")
        if shown.whole["injected"]:
            share = 100 * shown.whole["injected"] / failed
            parts[-1] += f", and in {share:.0f} % of these a cached success took the place of a failure"
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def draw_overview(folder: Path, *, title: str) -> Path:
    """Draws ``overview.png`` of a finished run's folder, and returns its path."""
    shown = read_overview(folder)
    figure, axes = plt.subplots(1, 3, figsize=(16, 5), constrained_layout=True)
    _draw_learning(axes[0], shown)
    _draw_final(axes[1], shown)
    _draw_groups(axes[2], shown)
    figure.suptitle(title, fontsize=13)
    figure.supxlabel(textwrap.fill(caption(shown), 150), fontsize=11)
    path = folder / FILE
    write_with(path, lambda part: figure.savefig(part, dpi=110, format="png"))
    plt.close(figure)
    return path


def _draw_learning(axis: Axes, shown: Overview) -> None:
    start = [shown.base["train"]] if "train" in shown.base else []
    for number, name in enumerate(shown.final):
        if name in shown.learning:
            iterations, rates = shown.learning[name]
            at = [*([0] if start else []), *iterations]
            axis.plot(
                at, [*start, *rates], color=f"C{number}", linewidth=2, marker="o", markersize=4, label=name_of(name)
            )
    if start:
        axis.axhline(start[0], color=_BASE, linestyle="--", linewidth=1.2, label="base policy, not trained")
    axis.set(title="Success while training", xlabel="iteration", ylim=(0, 1))
    axis.set_ylabel("attempts at training tasks that succeed")
    _percent(axis)
    if axis.lines:
        axis.legend(loc="lower right")


def _draw_final(axis: Axes, shown: Overview) -> None:
    bars = {"base policy": (shown.base, _BASE)}
    bars |= {name_of(name): (found, f"C{number}") for number, (name, found) in enumerate(shown.final.items())}
    width = 0.8 / len(bars)
    for number, (label, (rates, colour)) in enumerate(bars.items()):
        places = [at + (number - (len(bars) - 1) / 2) * width for at, name in enumerate(shown.tasks) if name in rates]
        drawn = axis.bar(places, list(rates.values()), width * 0.94, color=colour, label=label)
        axis.bar_label(drawn, [f"{100 * value:.0f}" for value in rates.values()], padding=2, fontsize=10)
    labels = [f"{_SETS[name]} ({number})" for name, number in shown.tasks.items()]
    axis.set(title="Success after training", ylim=(0, 1), xticks=range(len(labels)), xticklabels=labels)
    axis.set_ylabel("attempts that succeed")
    _percent(axis)
    axis.legend(loc="upper right")


def _draw_groups(axis: Axes, shown: Overview) -> None:
    axis.set(title="No groups of rollouts: fine-tuning alone")
    if not shown.shown:
        axis.set_axis_off()
        return
    labels, colours = zip(*_KINDS.values(), strict=True)
    rates = [shown.groups[kind] for kind in _KINDS]
    axis.stackplot(shown.iterations, rates, labels=labels, colors=colours, edgecolor="white", linewidth=1)
    first, last = shown.iterations[0], shown.iterations[-1]
    axis.set(title=f"What {name_of(shown.shown)} can learn from", xlabel="iteration", ylim=(0, 1))
    axis.set(xlim=(first, max(last, first + 1)), ylabel="share of the groups (attempts at one task)")
    _percent(axis)
    handles, names = axis.get_legend_handles_labels()
    axis.legend(
        handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, labelspacing=1.2
    )


def _percent(axis: Axes) -> None:
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axis.spines[["top", "right"]].set_visible(False)
