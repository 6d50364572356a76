"""The tables of methods: success by set of tasks, and differences to one method."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from recipes.study.estimates import BASE, MIN_SEEDS, Study, all_rates, gain_text, pair, rate_text, seeds_text
from recipes.study.markdown import row, rule
from recipes.study.records import Result
from recipes.study.variants import counted_self_rollouts

#: how the cells were made
HOW_TO_READ = """
Sampled success at temperature 1 in %, 8 episodes per task, differences in points. In brackets the 95 % interval: a
paired bootstrap over seeds and tasks, made as wide as Student's t over the seeds' means where that is wider, since a
bootstrap of 3 or 5 seeds is too narrow for what differs between seeds. `*`: the interval excludes 0. Intervals are not
corrected for their number: of twenty differences that are 0, about one gets a star. `base` is one evaluation of the
policy before training, the same for all seeds. `expert_only`: training tasks that the base policy solves with the
expert's plan and not in 8 tries without; they differ by seed, so that their intervals are Student's t over the seeds.
`rollouts` includes LEVEL-1's where a method uses them.
"""
SETS = ("train", "expert_only", "held_out", "held_out/known", "held_out/unknown")


def success_table(study: Study, names: Sequence[str], least: int = MIN_SEEDS) -> list[str]:
    """Success by task set of the base policy and each variant with results of ``least`` seeds, Markdown lines."""
    lines = [row("method", "seeds", *SETS, "rollouts", "updates"), rule(len(SETS) + 4)]
    present = [name for name in names if len(study.get(name, ())) >= least]
    for name in [*([BASE] if present else []), *present]:
        base = name == BASE
        results = study[present[0] if base else name]
        cells = [rate_text(all_rates(results, part, base=base)) for part in SETS]
        lines.append(row(name, seeds_text(results, base=base), *cells, *(["", ""] if base else costs(results))))
    return lines


def costs(results: Sequence[Result]) -> list[str]:
    """Rollouts (LEVEL-1's counted where the method uses them) and optimiser steps, means over seeds."""
    rollouts = mean(r.totals["episodes"] + counted_self_rollouts(r.variant, r.preparation) for r in results)
    return [f"{rollouts:.0f}", f"{mean(r.totals['optimizer_steps'] for r in results):.0f}"]


def difference_table(study: Study, names: Sequence[str], reference: str, least: int = MIN_SEEDS) -> list[str]:
    """Paired differences to one method in points, Markdown lines; ``*``: the interval excludes 0."""
    lines = [row(f"minus {reference}", *SETS), rule(len(SETS) + 1)]
    for name in names:
        found = [pair(study, name, reference, part) for part in SETS]
        if name != reference and found[0] is not None and len(found[0][0]) >= least:
            lines.append(row(name, *(gain_text(each) for each in found)))
    return lines
