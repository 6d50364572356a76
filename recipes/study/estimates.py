"""Success rates of a study's results as arrays, paired by seed and task, and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np

from bepa_torchrl.evaluation.statistics import Estimate, Rates, difference, estimate
from recipes.study.records import Result

MODE = "sampled"
MIN_SEEDS = 3  #: fewer give no interval worth the name
BASE = "base"  #: the name of the policy before training
Study = Mapping[str, Sequence[Result]]  #: variant → its results, by seed


def rates(results: Sequence[Result], part: str, seeds: Sequence[int], *, base: bool = False) -> Rates | None:
    """Success rates ``[S, K]`` of the tasks that are in ``part`` under every seed; None if there is none.

    The expert-only tasks differ by seed, since the self-rollouts do: then a row is the seed's mean, ``[S, 1]``.
    """
    return _as_array([rates_of(result, part, base=base) for result in results if result.seed in seeds], part)


def _as_array(per_seed: Sequence[Mapping[str, float]], part: str) -> Rates | None:
    if not per_seed or not all(per_seed):
        return None
    if part == "expert_only":
        return np.array([[mean(found.values())] for found in per_seed])
    common = [task for task in per_seed[0] if all(task in found for found in per_seed)]
    return np.array([[found[task] for task in common] for found in per_seed]) if common else None


def all_rates(results: Sequence[Result], part: str, *, base: bool = False) -> Rates | None:
    """:func:`rates` of all of these results; of the first alone where the base policy has a single evaluation."""
    if base and part != "expert_only" and len(results) < MIN_SEEDS and one_evaluation(results):
        results = results[:1]
    return rates(results, part, [result.seed for result in results], base=base)


def rates_of(result: Result, part: str, *, base: bool) -> dict[str, float]:
    """Success rate of each task of a set that has episodes, after training or (``base``) before it."""
    counts = (result.base_counts if base else result.counts)[MODE]
    return {task: counts[task][0] / counts[task][1] for task in result.sets.get(part, ()) if counts[task][1]}


def one_evaluation(results: Sequence[Result]) -> bool:
    """Whether the base policy's episodes are the same for all seeds."""
    return all(result.base_counts[MODE] == results[0].base_counts[MODE] for result in results)


def seeds_text(results: Sequence[Result], *, base: bool = False) -> str:
    """The number of seeds; for the base policy ``1 evaluation`` if they share it."""
    return "1 evaluation" if base and one_evaluation(results) else str(len(results))


def common_seeds(study: Study, names: Sequence[str]) -> list[int]:
    """The seeds that all of these variants have."""
    return sorted(set.intersection(*({result.seed for result in study[name]} for name in names)))


def pair(study: Study, name: str, reference: str, part: str) -> tuple[Rates, Rates] | None:
    """Rates of two variants under the seeds that both have; None if one has no results or no tasks of this set.

    A task without an episode of one variant, since its desktop failed in all, is left out of both under this seed.

    Args:
        study: all results.
        name: a variant.
        reference: another one, or :data:`BASE`.
        part: the set of tasks.
    """
    base = reference == BASE
    names = [name] if base else [name, reference]
    if not all(study.get(each) for each in names):
        return None
    seeds = common_seeds(study, names)
    ones, others = (
        [rates_of(result, part, base=of_base) for result in study[each] if result.seed in seeds]
        for each, of_base in ((name, False), (names[-1], base))
    )
    shared = [[task for task in a if task in b] for a, b in zip(ones, others, strict=True)]
    one, other = (
        _as_array([{task: found[task] for task in tasks} for found, tasks in zip(side, shared, strict=True)], part)
        for side in (ones, others)
    )
    return None if one is None or other is None else (one, other)


def paired(study: Study, name: str, reference: str, part: str) -> Estimate | None:
    """The difference ``name - reference`` on a set of tasks; None without results of :data:`MIN_SEEDS` equal seeds."""
    found = pair(study, name, reference, part)
    return None if found is None or len(found[0]) < MIN_SEEDS else difference(*found)


def interval_text(found: Estimate | None) -> str:
    """``mean (low to high)`` in percent or points; a dash for None."""
    if found is None:
        return "–"
    return f"{100 * found.mean:z.1f} ({_bound(100 * found.low)} to {_bound(100 * found.high)})"


def _bound(value: float) -> str:
    """Without decimals, but for a value that would look like 0 without being it: its sign is what matters."""
    return f"{value:z.0f}" if abs(value) >= 0.5 or abs(value) < 0.05 else f"{value:.1f}"


def rate_text(found: Rates | None) -> str:
    """A rate in percent with its interval, or the seeds' rates, with ``/`` between them, if they are too few.

    Rates that are all 0, or all 1, have no interval: resampling them has no width, and says nothing.
    """
    if found is None:
        return "–"
    if len(found) < MIN_SEEDS:
        return " / ".join(f"{100 * each.mean():.1f}" for each in found)
    if found.max() == 0.0 or found.min() == 1.0:
        return f"{100 * found.mean():.1f}"
    whole = estimate(found)
    return interval_text(Estimate(whole.mean, max(whole.low, 0.0), min(whole.high, 1.0)))


def gain_text(found: tuple[Rates, Rates] | None) -> str:
    """A paired difference in points, ``*``: the interval excludes 0; or the seeds' differences if they are too few."""
    if found is None:
        return "–"
    one, other = found
    if len(one) < MIN_SEEDS:
        return " / ".join(f"{100 * each.mean():+.1f}" for each in one - other)
    whole = difference(one, other)
    return interval_text(whole) + ("*" if whole.sign else "")
