"""Section about rules that are not in the paper: a first look, one seed unless more ran."""

from __future__ import annotations

from collections.abc import Sequence

from recipes.study.estimates import MIN_SEEDS, Study, rate_text, rates
from recipes.study.markdown import row, rule, wrapped
from recipes.study.records import Result
from recipes.study.tables import SETS, difference_table
from recipes.study.variants import FURTHER, counted_self_rollouts

REFERENCES = ("grpo", "bepa")
_INTRODUCTION = """
Rules that are not in the paper ([definitions](definitions.md)), each alone, with the value of its source, on the same
tasks and from the same base policy as above; `prefix` has GRPO's other settings, all others have BEPA's. Only the
anchor is tuned, as BEPA and GRPO are. **Single runs**: the first table has one seed, beside GRPO's and BEPA's runs of
this seed, and seeds of one method differ by more than most rows here, so that it decides nothing. `steps` are
responses of the policy, and steps replayed for a prefix; runs from before they were kept have none.
"""


def further_section(study: Study) -> list[str]:
    """Markdown lines; none without results of such a rule."""
    found = [variant for variant in FURTHER if study.get(variant.name)]
    if not found:
        return []
    seed = min(result.seed for variant in found for result in study[variant.name])
    names = [variant.name for variant in found]
    command = f"`python -m recipes.study --bed terse --part further --seeds {seed}`"
    lines = ["## Further rules", "", command, "", *wrapped(_INTRODUCTION), "", *look_table(study, names, seed), ""]
    lines += [f"- `{variant.name}`: {variant.about}" for variant in found]
    for reference in REFERENCES:
        if len(table := difference_table(study, names, reference)) > 2:
            lines += ["", f"Against `{reference}`, rules with at least {MIN_SEEDS} seeds:", "", *table]
    return [*lines, ""]


def look_table(study: Study, names: Sequence[str], seed: int) -> list[str]:
    """Success of each variant with one seed, and what its run cost, Markdown lines; GRPO and BEPA first."""
    head = (f"seed {seed}", *SETS, "rollouts", "steps", "updates")
    lines = [row(*head), rule(len(head))]
    for name in [*REFERENCES, *names]:
        for result in study.get(name, ()):
            if result.seed == seed:
                cells = [rate_text(rates([result], part, [seed])) for part in SETS]
                lines.append(row(name, *cells, *_costs(result)))
    return lines


def _costs(result: Result) -> tuple[str, str, str]:
    rollouts = result.totals["episodes"] + counted_self_rollouts(result.variant, result.preparation)
    steps = [line["collect/steps"] for line in result.curve if "collect/steps" in line]
    return f"{rollouts:.0f}", f"{sum(steps):.0f}" if steps else "", f"{result.totals['optimizer_steps']:.0f}"
