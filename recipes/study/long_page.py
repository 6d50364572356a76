"""Section about 150 iterations: does the refresh help once LEVEL-1's traces are old?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np

from bepa_torchrl.evaluation.statistics import Rates
from recipes.study.estimates import MIN_SEEDS, Study, common_seeds, gain_text
from recipes.study.figures import Panel, draw, with_end
from recipes.study.markdown import row, rule, wrapped
from recipes.study.records import Result
from recipes.study.tables import difference_table, success_table
from recipes.study.variants import LONG

LEAST = 2  #: seeds; below :data:`MIN_SEEDS` without intervals
SPAN = 25  #: iterations whose rollouts are averaged
AT = (50, 75, 100, 125, 150)  #: iterations at which the two are compared
REFRESH = ("bepa_long", "level1_as_bepa_long")  #: the two that differ by the refresh alone
EVALUATED = {"eval/train": "train", "eval/expert_only": "expert_only", "eval/held_out": "held_out"}
PANELS = tuple(Panel(key, f"evaluation, {part}") for key, part in EVALUATED.items())


def long_section(study: Study, folder: Path, where: str) -> list[str]:
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
    lines += ["", *table] if (table := pair_lines(study, REFRESH)) else []
    return [*lines, "", f"![Success over 150 iterations]({where}/long.png)", ""]


def _introduction(study: Study, names: Sequence[str]) -> list[str]:
    seeds = sorted({result.seed for name in names for result in study[name]})
    sentences = [
        f"`python -m recipes.study --bed terse --part long --seeds {' '.join(map(str, seeds))}`:",
        "150 iterations instead of 40, evaluated every 25 with 2 episodes per task, and at the end with 8.",
    ]
    if any(len(study[name]) < MIN_SEEDS for name in names):
        sentences.append(f"Fewer than {MIN_SEEDS} seeds give no interval: such cells are the seeds' values, in order.")
    return wrapped(*sentences)


def pair_lines(study: Study, pair: tuple[str, str]) -> list[str]:
    """One variant minus another by iteration, Markdown lines; none without results of :data:`LEAST` seeds of both."""
    text = (
        f"`{pair[0]}` − `{pair[1]}` in points, paired by seed, in the evaluations during training (2 episodes per "
        f"task), at 150 in the one at the end (8); rollouts: success in the {SPAN} iterations up to this one."
    )
    lines = [row("iteration", *EVALUATED.values(), "rollouts"), rule(len(EVALUATED) + 2)]
    if any(len(study.get(name, ())) < LEAST for name in pair):
        return []
    for iteration in AT:
        readings = (*(partial(_at, key=key, iteration=iteration) for key in EVALUATED), partial(_before, iteration))
        found = [_both(study, pair, reading) for reading in readings]
        if any(each is not None for each in found):
            lines.append(row(str(iteration), *map(gain_text, found)))
    return [*wrapped(text), "", *lines]


def _both(study: Study, pair: tuple[str, str], reading: Callable[[Result], float | None]) -> tuple[Rates, Rates] | None:
    """The two methods' values under the seeds that both have, ``[S, 1]`` each; None if a result has none."""
    seeds = common_seeds(study, pair)
    both = [[reading(result) for result in study[name] if result.seed in seeds] for name in pair]
    if not seeds or any(value is None for values in both for value in values):
        return None
    one, other = (np.array(values, dtype=float)[:, None] for values in both)
    return one, other


def _at(result: Result, key: str, iteration: int) -> float | None:
    return next((line[key] for line in with_end(result) if line["iteration"] == iteration and key in line), None)


def _before(iteration: int, result: Result) -> float | None:
    """Mean success of the rollouts of :data:`SPAN` iterations up to this one; None unless all are there."""
    span = range(iteration - SPAN + 1, iteration + 1)
    values = [
        line["collect/success"] for line in result.curve if line["iteration"] in span and "collect/success" in line
    ]
    return mean(values) if len(values) == SPAN else None
