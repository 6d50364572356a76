"""Whether GRPO learns where it has a signal: its gain on the training tasks that the base policy solves at times."""

from __future__ import annotations

import numpy as np

from bepa_torchrl.evaluation.statistics import Estimate, difference
from recipes.study.estimates import BASE, MIN_SEEDS, Study, interval_text, pair
from recipes.study.markdown import wrapped

WANTED = 0.10  #: the gain that was asked for


def solvable_section(study: Study) -> list[str]:
    """Markdown lines; none without GRPO's results of enough seeds."""
    found = pair(study, "grpo", BASE, "train")
    if found is None or len(found[0]) < MIN_SEEDS:
        return []
    after, before = found
    rate = before.mean(axis=0)
    solvable, partly = rate > 0, (rate > 0) & (rate < 1)
    if not partly.any():
        return []
    gain = difference(after[:, solvable], before[:, solvable])
    part = difference(after[:, partly], before[:, partly])
    every = np.count_nonzero(solvable & ~partly)
    return [
        "## GRPO where it has a signal",
        "",
        *wrapped(
            f"""The base policy solved {np.count_nonzero(solvable)} of the {len(rate)} training tasks at least once in
            its evaluation. On these GRPO rises from {100 * before[:, solvable].mean():.1f} to
            {100 * after[:, solvable].mean():.1f} %: {interval_text(gain)} points, {len(after)} seeds. {answer(gain)}
            {every} of them the base policy solved every time, which leaves no room; on the other
            {np.count_nonzero(partly)} GRPO gains {interval_text(part)} points. The tasks were chosen by the evaluation
            that is subtracted, so that it is a little too high by chance, and the gain too low. Only the evaluations
            are kept per task, not the rollouts during training."""
        ),
        "",
    ]


def answer(gain: Estimate) -> str:
    """Whether the gain that was asked for was reached."""
    asked = f"A gain of {100 * WANTED:.0f} points was asked for:"
    missed = gain.mean < WANTED
    if gain.low > WANTED or gain.high < WANTED:
        return f"{asked} {'**missed**' if missed else 'reached'}."
    return (
        f"{asked} {'**narrowly missed**' if missed else 'narrowly reached'}, with {100 * WANTED:.0f} in the interval."
    )
