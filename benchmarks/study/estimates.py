"""Success rates of a study's results as arrays, paired by seed and task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np

from benchmarks.study.records import Result
from benchmarks.study.statistics import Estimate, Rates, difference

MODE = "sampled"
MIN_SEEDS = 3  #: fewer give no interval worth the name
Study = Mapping[str, Sequence[Result]]  #: variant → its results, by seed


def rates(results: Sequence[Result], part: str, seeds: Sequence[int], *, base: bool = False) -> Rates | None:
    """Success rates ``[S, K]`` of the tasks that are in ``part`` under every seed; None if there is none.

    The expert-only tasks differ by seed, since the self-rollouts do: then a row is the seed's mean, ``[S, 1]``.
    """
    chosen = [result for result in results if result.seed in seeds]
    per_seed = [rates_of(result, part, base=base) for result in chosen]
    if not per_seed or not all(per_seed):
        return None
    common = [task for task in per_seed[0] if all(task in found for found in per_seed)]
    if part == "expert_only":
        return np.array([[mean(found.values())] for found in per_seed])
    return np.array([[found[task] for task in common] for found in per_seed])


def rates_of(result: Result, part: str, *, base: bool) -> dict[str, float]:
    """Success rate of each task of a set that has episodes, after training or (``base``) before it."""
    counts = (result.base_counts if base else result.counts)[MODE]
    return {task: counts[task][0] / counts[task][1] for task in result.sets.get(part, ()) if counts[task][1]}


def common_seeds(study: Study, names: Sequence[str]) -> list[int]:
    """The seeds that all of these variants have."""
    return sorted(set.intersection(*({result.seed for result in study[name]} for name in names)))


def paired(study: Study, name: str, reference: str, part: str) -> Estimate | None:
    """The difference ``name - reference`` on a set of tasks; None without results of :data:`MIN_SEEDS` equal seeds."""
    if name not in study or reference not in study:
        return None
    seeds = common_seeds(study, (name, reference))
    if len(seeds) < MIN_SEEDS:
        return None
    one, other = (rates(study[each], part, seeds) for each in (name, reference))
    return None if one is None or other is None else difference(one, other)


def interval_text(found: Estimate | None) -> str:
    """``mean (low to high)`` in percent or points; a dash for None."""
    if found is None:
        return "–"
    return f"{100 * found.mean:.1f} ({100 * found.low:.0f} to {100 * found.high:.0f})"
