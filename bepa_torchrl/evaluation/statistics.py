"""Intervals and tests of success rates, for the evaluation card, the comparison of methods and the training tables.

Student's t and the exact McNemar test are scipy's. The bootstraps are ours, since what is resampled depends on the
design: seeds crossed with tasks (several trained policies on the same tasks), or passes within tasks (several episodes
of one policy per task), where tasks alone are drawn. So is Wilson's interval, since several passes are worth a number
of independent episodes that is not whole. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 10_000
LEVEL = 0.95  #: of every interval
ROUNDING = 1e-9  #: of a difference of means: 2/3 - 1/3 and 1 - 2/3 are alike
FEWEST_PAIRS = 6  #: that must differ, all in the same way, for a p-value of at most 0.05 by McNemar: 2 (1/2)^6 = 0.031
Rates = NDArray[np.float64]  #: ``[S, K]``: success rate of each task under each seed, in [0, 1]


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or -1 if the interval excludes 0, else 0."""
        return int(self.low > 0) - int(self.high < 0)


# --- seeds crossed with tasks ---------------------------------------------------------------------------------------


def estimate(rates: Rates, *, seed: int = 0) -> Estimate:
    """The mean, and an interval that holds both :func:`bootstrap` and :func:`t_interval`.

    A bootstrap of a few seeds is too narrow for what differs between seeds, Student's t says nothing about other tasks.
    With a single column, where each seed has tasks of its own, this is Student's t.

    Raises:
        ValueError: as :func:`bootstrap`.
    """
    both = bootstrap(rates, seed=seed), t_interval(rates)
    return Estimate(both[0].mean, min(each.low for each in both), max(each.high for each in both))


def bootstrap(rates: Rates, *, seed: int = 0) -> Estimate:
    """The mean over seeds and tasks, and its interval over both, by a bootstrap.

    Seeds are drawn with replacement, and tasks with replacement, the same tasks for all drawn seeds: seeds share the
    tasks, so that a task's difficulty is not averaged out by more seeds.

    Args:
        rates: ``[S, K]``, at least two seeds and one task.
        seed: the seed of the resampling.

    Raises:
        ValueError: another shape, a rate that is not finite, or a single seed.
    """
    _check_rates(rates)
    generator = np.random.default_rng(seed)
    seeds, tasks = rates.shape
    draws_s = generator.integers(seeds, size=(RESAMPLES, seeds))
    draws_k = generator.integers(tasks, size=(RESAMPLES, tasks))
    counts_s = _counts(draws_s, seeds)
    counts_k = _counts(draws_k, tasks)
    means = np.einsum("bs,sk,bk->b", counts_s, rates, counts_k) / (seeds * tasks)
    return _percentiles(float(rates.mean()), means)


def t_interval(rates: Rates) -> Estimate:
    """The mean over seeds of each seed's mean, and Student's interval over the seeds, with these tasks.

    Args:
        rates: ``[S, K]``, at least two seeds and one task.

    Raises:
        ValueError: as :func:`bootstrap`.
    """
    _check_rates(rates)
    means = rates.mean(axis=1)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, len(means) - 1))
    half = quantile * float(means.std(ddof=1)) / sqrt(len(means))
    middle = float(means.mean())
    return Estimate(middle, middle - half, middle + half)


def difference(one: Rates, other: Rates, *, seed: int = 0) -> Estimate:
    """The mean of ``one - other`` with its interval, paired by seed and task.

    Raises:
        ValueError: shapes that differ, or as :func:`estimate`.
    """
    if one.shape != other.shape:
        raise ValueError(f"paired rates have one shape, got {one.shape} and {other.shape}")
    return estimate(one - other, seed=seed)


# --- passes within tasks --------------------------------------------------------------------------------------------

#: the scores of each task's episodes, in [0, 1]; tasks may have different numbers of them, none may have none
Passes = Sequence[Sequence[float]]


def success_interval(passes: Passes) -> Estimate:
    """The mean over tasks of each task's mean score, with its interval: Wilson's, of the effective number of episodes.

    With one episode per task these are the n tasks, and it is Wilson's interval of a proportion. With several, a task's
    episodes are alike, so that they count for less: with v the variance of the tasks' means m_i (divided by n) and p
    their mean, they are worth as many independent episodes as have the same variance of the mean, p (1 - p) n / v. That
    is between n (each task always or never succeeds) and the number of episodes (tasks do not differ), which it is at
    most. If all episodes succeeded, or none did, v says nothing: then it is the number of tasks, as if each always or
    never succeeds. A single success in several passes shows that they do not, so that its interval may be narrower.

    Raises:
        ValueError: there is no task, a task has no episode, or a score is not in [0, 1].
    """
    _check(passes)
    means = np.array([np.mean(scores) for scores in passes])
    mean, variance, number = float(means.mean()), float(means.var()), float(len(means))
    if 0.0 < mean < 1.0:
        episodes = sum(map(len, passes))
        worth = mean * (1.0 - mean) * len(means)
        number = worth / variance if worth < variance * episodes else float(episodes)
    return _wilson(mean, number)


def wilson(successes: int, episodes: int) -> Estimate:
    """Wilson's score interval of a proportion.

    Raises:
        ValueError: no episode, or more successes than episodes.
    """
    if not 0 <= successes <= episodes or not episodes:
        raise ValueError(f"a proportion requires 0 to n successes of n > 0 episodes, got {successes} of {episodes}")
    return _wilson(successes / episodes, float(episodes))


def pass_at_k(successes: int, episodes: int, k: int) -> float:
    """Probability that at least one of k episodes, drawn without replacement, succeeds (the unbiased estimator).

    Raises:
        ValueError: fewer than k episodes, k below 1, or successes that are not 0 to the number of episodes.
    """
    _check_k(successes, episodes, k)
    return 1.0 - comb(episodes - successes, k) / comb(episodes, k)


def all_pass_at_k(successes: int, episodes: int, k: int) -> float:
    """Probability that all of k episodes, drawn without replacement, succeed. Raises as :func:`pass_at_k`."""
    _check_k(successes, episodes, k)
    return comb(successes, k) / comb(episodes, k)


def efficiency_quality_area(successes: Sequence[bool], steps: Sequence[int], max_steps: int) -> float:
    """MMBench-GUI's efficiency-quality area (EQA), in [0, 1]: how early, in steps spent, the successes come.

    With T_k and S_k the sums of steps and of successes of the first k of N tasks, R(u) is the largest S_k / N with
    T_k / (N max_steps) <= u, and the area is the mean of R at u = 0, 0.01, ..., 1. It depends on the tasks' order.

    Args:
        successes: the successes of each task, in order.
        steps: the steps of each task, in the same order; at most ``max_steps`` each.
        max_steps: step budget of a task.

    Raises:
        ValueError: no task, different numbers of tasks, or a task with more steps than the budget.
    """
    if not successes or len(successes) != len(steps) or max(steps) > max_steps or min(steps) < 0:
        raise ValueError(
            f"the efficiency-quality area requires a success and 0 to {max_steps} steps of each task, got "
            f"{len(successes)} successes and {len(steps)} step counts, the largest {max(steps, default=0)}"
        )
    spent, solved = np.cumsum(steps), np.cumsum(successes)
    points = np.arange(101) * len(steps) * max_steps  # 100 T_max u, in integers, so that no border is missed
    done = np.searchsorted(100 * spent, points, side="right")  # the tasks that are over by then
    return float(np.concatenate([[0], solved])[done].mean() / len(steps))


# --- two evaluations of the same tasks ------------------------------------------------------------------------------


def mcnemar(only_first: int, only_second: int) -> float:
    """The two-sided p-value of the exact McNemar test; 1 if no pair differs.

    Args:
        only_first: pairs in which only the first of both succeeded.
        only_second: pairs in which only the second did.
    """
    pairs = only_first + only_second
    return float(stats.binomtest(only_first, pairs).pvalue) if pairs else 1.0


def paired_difference(first: Passes, second: Passes, *, seed: int = 0) -> Estimate:
    """The mean over tasks of ``second - first``, with a bootstrap interval over the tasks' differences.

    A drawn task brings all its episodes of both sides: their noise is in its difference already, and drawing episodes
    again would count it twice. If all tasks differ alike, a bootstrap has no width. Then it is Tango's score interval
    of as many pairs (Statistics in Medicine 17, 1998), ±z² / (n + z²) where none of n differs and from
    (n - z²) / (n + z²) to 1 where all are gained; between these it is twice Wilson's of (1 + difference) / 2, less 1.

    Raises:
        ValueError: different numbers of tasks, or as :func:`success_interval`.
    """
    if len(first) != len(second):
        raise ValueError(f"a paired difference requires the same tasks, got {len(first)} and {len(second)}")
    _check(first)
    _check(second)
    differences = np.array([np.mean(b) - np.mean(a) for a, b in zip(first, second, strict=True)])
    middle, number = float(differences.mean()), len(differences)
    if np.ptp(differences) > ROUNDING:
        draws = np.random.default_rng(seed).integers(number, size=(RESAMPLES, number))
        return _percentiles(middle, differences[draws].mean(axis=1))
    if abs(middle) <= ROUNDING:
        bound = wilson(0, number).high  # z² / (n + z²)
        return Estimate(middle, -bound, bound)
    half = _wilson((1.0 + middle) / 2.0, float(number))
    return Estimate(middle, 2.0 * half.low - 1.0, 2.0 * half.high - 1.0)


def smallest_difference(first: Passes, second: Passes, *, power: float = 0.8) -> float | None:
    """The difference of means that this design would find with the given power, in (0, 1]; None if nobody can say.

    It is the larger of two. The normal approximation, (z_0.975 + z_power) s / √n, follows from the standard deviation s
    of the n tasks' differences. With one episode per task, the exact McNemar test sets a bound that depends on n alone:
    even if no task is lost, :data:`FEWEST_PAIRS` must be gained for a p-value of at most 0.05, which happens with the
    given power if the share d of tasks that are gained has P(Bin(n, d) ≥ 6) = power.

    Nobody can say with fewer than :data:`FEWEST_PAIRS` tasks; where several episodes per task differ alike in all
    tasks, so that s is 0; and where it would exceed 1.

    Raises:
        ValueError: different numbers of tasks.
    """
    differences = np.array([np.mean(b) - np.mean(a) for a, b in zip(first, second, strict=True)])
    number = len(differences)
    if number < FEWEST_PAIRS:
        return None
    quantiles = stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(power)
    deviation = float(differences.std(ddof=1)) if np.ptp(differences) > ROUNDING else 0.0
    found = float(quantiles * deviation / sqrt(number))
    if all(len(scores) == 1 for scores in (*first, *second)):  # the quantile of a beta distribution is that d
        found = max(found, float(stats.beta.ppf(power, FEWEST_PAIRS, number - FEWEST_PAIRS + 1)))
    return found if 0.0 < found <= 1.0 else None


# --- parts ----------------------------------------------------------------------------------------------------------


def _check_rates(rates: Rates) -> None:
    if rates.ndim != 2 or rates.shape[0] < 2 or rates.shape[1] < 1:
        raise ValueError(f"an interval requires rates [S, K] of at least 2 seeds and 1 task, got {rates.shape}")
    if not np.isfinite(rates).all():
        raise ValueError("a success rate is NaN or infinite: every task needs at least one valid episode")


def _check(passes: Passes) -> None:
    if not len(passes) or not all(len(scores) for scores in passes):
        raise ValueError("an interval requires at least one task, and an episode of each; leave tasks without one out")
    outside = [score for scores in passes for score in scores if not 0.0 <= score <= 1.0]
    if outside:
        raise ValueError(f"a score is in [0, 1], got {outside[0]}; leave episodes without a score out")


def _check_k(successes: int, episodes: int, k: int) -> None:
    if k < 1:
        raise ValueError(f"pass@k requires k >= 1, got {k}")
    if k > episodes:
        raise ValueError(f"pass@{k} requires at least {k} episodes of each task, got {episodes}")
    if not 0 <= successes <= episodes:
        raise ValueError(f"pass@k requires 0 to {episodes} successes of {episodes} episodes, got {successes}")


def _wilson(proportion: float, number: float) -> Estimate:
    """Wilson's score interval of a proportion of ``number`` episodes, which need not be whole."""
    square = float(stats.norm.ppf((1 + LEVEL) / 2)) ** 2
    centre = proportion + square / (2.0 * number)
    half = sqrt(square * (proportion * (1.0 - proportion) / number + square / (4.0 * number**2)))
    scale = 1.0 + square / number
    low = 0.0 if proportion == 0.0 else (centre - half) / scale
    high = 1.0 if proportion == 1.0 else (centre + half) / scale
    return Estimate(proportion, low, high)


def _percentiles(mean: float, resamples: NDArray[np.float64]) -> Estimate:
    low, high = np.quantile(resamples, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Estimate(mean, float(low), float(high))


def _counts(draws: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """How often each index occurs in each row of ``draws``."""
    out = np.zeros((len(draws), size))
    np.add.at(out, (np.arange(len(draws))[:, None], draws), 1.0)
    return out
