"""Section about asynchronous rollouts: what a bound on the staleness costs in success."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from recipes.study.estimates import MIN_SEEDS, Study
from recipes.study.figures import Panel, draw
from recipes.study.markdown import row, rule, wrapped
from recipes.study.records import Result
from recipes.study.tables import difference_table, success_table
from recipes.study.variants import STALENESS

LOCK_STEP = "bepa"  #: collects in lock-step, which is a staleness of 0
PANELS = (
    Panel("eval/train", "evaluation, training tasks", against="total/episodes"),
    Panel("eval/expert_only", "evaluation, expert-only tasks", against="total/episodes"),
    Panel("eval/held_out", "evaluation, held-out tasks", against="total/episodes"),
    Panel("eval/train", "evaluation, training tasks", against="total/seconds"),
    Panel("collect/staleness_mean", "age of the trained groups, iterations", rate=False),
    Panel("train/rollout_kl_on_policy", "KL of sampler and trainer, nats per token", rate=False),
)
MEASURED = ("collect/staleness_mean", "collect/version_lag_mean", "train/rollout_kl_on_policy")  #: means over training
_INTRODUCTION = """
BEPA with `collect.mode=async`, at equal numbers of episodes and updates. `bepa` collects in lock-step, which is a
staleness of 0. Simulated desktops answer at once and share two cores with the training, so that nothing is gained in
wall time here: what asynchronous rollouts save where desktops take their time is in [cluster.md](cluster.md). This is
what they cost. Seconds are what a run took beside the other jobs of the machine, many for some runs and few for
others: they do not compare the methods.
"""


def staleness_section(study: Study, folder: Path, where: str) -> list[str]:
    """Markdown lines, and the figure in ``folder``; none unless a variant has results of :data:`MIN_SEEDS` seeds."""
    found = [variant for variant in STALENESS if len(study.get(variant.name, ())) >= MIN_SEEDS]
    if not found:
        return []
    names = [variant.name for variant in found]
    seeds = sorted({result.seed for name in names for result in study[name]})
    usual = {**study, LOCK_STEP: [result for result in study.get(LOCK_STEP, ()) if result.seed in seeds]}
    draw(usual, [LOCK_STEP, *names], PANELS, folder / "staleness.png")
    command = f"`python -m recipes.study --bed terse --part staleness --seeds {' '.join(map(str, seeds))}`"
    lines = ["## Staleness", "", command, "", *wrapped(_INTRODUCTION), ""]
    lines += [*success_table(usual, [LOCK_STEP, *names]), ""]
    lines += [f"- `{variant.name}`: {variant.about}" for variant in found]
    lines += ["", *difference_table(usual, names, LOCK_STEP), "", *measured_table(usual, [LOCK_STEP, *names]), ""]
    return [*lines, f"![Success at several bounds on the staleness]({where}/staleness.png)", ""]


def measured_table(study: Study, names: Sequence[str]) -> list[str]:
    """Real ages and the sampler's distance to the trainer, means over iterations and seeds, and the wall time."""
    head = ("age, iterations", "age, updates", "KL, nats per token", "seconds")
    lines = [row("method", *head), rule(len(head) + 1)]
    for name in names:
        results = study.get(name, ())
        if results:
            cells = [_mean_text(results, key) for key in MEASURED]
            lines.append(row(name, *cells, f"{mean(result.totals['seconds'] for result in results):.0f}"))
    return lines


def _mean_text(results: Sequence[Result], key: str) -> str:
    """The mean of a curve's metric; empty where no run has it, as for rollouts in lock-step."""
    values = [line[key] for result in results for line in result.curve if key in line]
    return f"{mean(values):.2g}" if values else ""
