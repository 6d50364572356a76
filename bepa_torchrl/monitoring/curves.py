"""Plots the learning curves of a run's methods in one picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from bepa_torchrl.storage.json_lines import read_lines
from osworld_gym.atomic import write_with

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

WINDOW = 5  #: iterations over which the rollouts' success is averaged
DOTS = 3  #: a line of fewer points has dots: a single one would not be seen
_PANELS = (
    ("collect/success", "success of the rollouts", WINDOW),
    ("eval/train", "success on training tasks (evaluation)", 1),
    ("eval/held_out", "success on held-out tasks (evaluation)", 1),
    ("eval/expert_only", "success on expert-only tasks (evaluation)", 1),
    ("cache/tasks", "tasks in the cache", 1),
    ("cache/injected", "groups whose failure was replaced", WINDOW),
)
Line = Mapping[str, Any]


def series(lines: Sequence[Line], key: str, window: int = 1) -> tuple[list[int], list[float]]:
    """Iterations and values of a metric where it is recorded, as moving averages over ``window`` values."""
    points = [(int(line["iteration"]), float(line[key])) for line in lines if line.get(key) is not None]
    values = [value for _, value in points]
    means = [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]
    return [iteration for iteration, _ in points], means


def final_point(results: Mapping[str, Any], key: str) -> float | None:
    """The final sampled evaluation of ``eval/<set>``, or None."""
    sampled = results.get("success", {}).get("sampled", {})
    value = sampled.get(key.removeprefix("eval/"))
    return None if value is None else float(value)


def base_value(runs: Iterable[Sequence[Line]], key: str) -> float | None:
    """The evaluation before the first iteration, which all methods share; None for other metrics."""
    values = [
        line[key] for lines in runs for line in lines if int(line["iteration"]) == 0 and line.get(key) is not None
    ]
    return float(values[0]) if values and key.startswith("eval/") else None


def draw_curves(folder: Path, methods: Sequence[str], *, title: str) -> Path:
    """Draws ``curves.png`` from the methods' ``iterations.jsonl`` and ``results.json``."""
    runs = {name: read_lines(folder / name / "iterations.jsonl") for name in methods}
    ends = {name: json.loads((folder / name / "results.json").read_text(encoding="utf-8")) for name in methods}
    figure, axes = plt.subplots(2, 3, figsize=(15, 8), constrained_layout=True)
    for axis, (key, label, window) in zip(axes.flat, _PANELS, strict=True):
        for name in methods:
            _draw(axis, name, runs[name], ends[name], key, window)
        base = base_value(runs.values(), key)
        if base is not None:
            axis.axhline(base, color="grey", linestyle="--", linewidth=1, label="base policy")
        axis.set_title(label + (f", mean of {window}" if window > 1 else ""), fontsize=10)
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
        if key.startswith(("eval/", "collect/")):
            axis.set_ylim(0, 1)
    axes.flat[1].legend()
    figure.suptitle(title)
    path = folder / "curves.png"
    write_with(path, lambda part: figure.savefig(part, dpi=110))
    plt.close(figure)
    return path


def _draw(axis: Axes, name: str, lines: Sequence[Line], end: Mapping[str, Any], key: str, window: int) -> None:
    iterations, values = series(lines, key, window)
    final = final_point(end, key) if key.startswith("eval/") else None
    if final is not None:
        iterations, values = [*iterations, int(end["iterations"])], [*values, final]
    dots = key.startswith("eval/") or len(values) < DOTS
    axis.plot(iterations, values, label=name, marker="o" if dots else None, markersize=4)
