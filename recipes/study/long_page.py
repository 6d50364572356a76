"""Section of results-details.md about 150 iterations: does the refresh help once LEVEL-1's traces are old?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bepa_torchrl.evaluation.statistics import Rates
from recipes.study.estimates import MIN_SEEDS, Study, common_seeds, gain_text
from recipes.study.figures import Panel, draw, with_end
from recipes.study.markdown import row, rule, wrapped
from recipes.study.records import Result
from recipes.study.tables import difference_table, success_table
from recipes.study.variants import LONG

LEAST = 2  #: seeds; below :data:`MIN_SEEDS` without intervals
AT = (50, 100, 150)  #: iterations at which the two are compared
PAIR = ("bepa_long", "level1_as_bepa_long")
EVALUATED = {"eval/train": "train", "eval/expert_only": "expert_only", "eval/held_out": "held_out"}
PANELS = tuple(Panel(key, f"evaluation, {part}") for key, part in EVALUATED.items())


def long_section(study: Study, folder: Path) -> list[str]:
    """Markdown lines, and the figure in ``folder``; none unless two variants have results of :data:`LEAST` seeds."""
    names = [variant.name for variant in LONG if len(study.get(variant.name, ())) >= LEAST]
    if len(names) < 2:
        return []
    draw(study, names, PANELS, folder / "long.png")
    lines = ["## Long runs", "", *_introduction(study, names), "", *success_table(study, names, LEAST), ""]
    lines += [f"- `{variant.name}`: {variant.about}" for variant in LONG if variant.name in names]
    for reference in ("grpo_long", "bepa_long"):
        if len(table := difference_table(study, names, reference, LEAST)) > 2:
            lines += ["", *table]
    if len(table := refresh_table(study)) > 2:
        head = f"`{PAIR[0]}` − `{PAIR[1]}` in points over training, paired by seed; 150 is the evaluation at the end:"
        lines += ["", head, "", *table]
    return [*lines, "", "![Success over 150 iterations](results/long.png)", ""]


def _introduction(study: Study, names: Sequence[str]) -> list[str]:
    seeds = sorted({result.seed for name in names for result in study[name]})
    sentences = [
        f"`python -m recipes.study --part long --seeds {' '.join(map(str, seeds))}`: 150 iterations instead of 40,",
        "evaluated every 25 with 2 episodes per task, and at the end with 8.",
    ]
    if any(len(study[name]) < MIN_SEEDS for name in names):
        sentences.append(f"Fewer than {MIN_SEEDS} seeds give no interval: such cells are the seeds' values, in order.")
    return wrapped(*sentences)


def refresh_table(study: Study) -> list[str]:
    """BEPA with the refresh minus LEVEL-1 at its rate, by iteration; the head alone without results of both."""
    lines = [row("iteration", *EVALUATED.values()), rule(len(EVALUATED) + 1)]
    if all(len(study.get(name, ())) >= LEAST for name in PAIR):
        for iteration in AT:
            cells = [gain_text(_curves_at(study, key, iteration)) for key in EVALUATED]
            lines.append(row(str(iteration), *cells))
    return lines


def _curves_at(study: Study, key: str, iteration: int) -> tuple[Rates, Rates] | None:
    """The two methods' values under the seeds that both have, ``[S, 1]`` each; None if one has none there."""
    seeds = common_seeds(study, PAIR)
    both = [[_at(result, key, iteration) for result in study[name] if result.seed in seeds] for name in PAIR]
    if not seeds or any(value is None for values in both for value in values):
        return None
    one, other = (np.array(values, dtype=float)[:, None] for values in both)
    return one, other


def _at(result: Result, key: str, iteration: int) -> float | None:
    return next((line[key] for line in with_end(result) if line["iteration"] == iteration and key in line), None)
