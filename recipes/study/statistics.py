"""Intervals of success rates over seeds and tasks. Pure functions of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
#: 97.5 % quantiles of Student's t with 1 to 10 degrees of freedom; with more, the last is a little wide
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
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


def estimate(rates: Rates, *, seed: int = 0) -> Estimate:
    """The mean, and an interval that holds both :func:`bootstrap` and :func:`t_interval`.

    A bootstrap of a few seeds is too narrow for what differs between seeds, Student's t says nothing about other tasks.
    With a single column, where each seed has tasks of its own, this is Student's t.

    Raises:
        ValueError: as :func:`bootstrap`.
    """
    both = bootstrap(rates, seed=seed), t_interval(rates)
    return Estimate(both[0].mean, min(found.low for found in both), max(found.high for found in both))


def bootstrap(rates: Rates, *, seed: int = 0) -> Estimate:
    """The mean over seeds and tasks, and its interval over both, by a bootstrap.

    Seeds are drawn with replacement, and tasks with replacement, the same tasks for all drawn seeds: seeds share the
    tasks, so that a task's difficulty is not averaged out by more seeds.

    Args:
        rates: ``[S, K]``, at least two seeds and one task.
        seed: of the resampling.

    Raises:
        ValueError: another shape, NaN, or a single seed.
    """
    if rates.ndim != 2 or rates.shape[0] < 2 or rates.shape[1] < 1:
        raise ValueError(f"an interval requires rates [S, K] of at least 2 seeds and 1 task, got {rates.shape}")
    if np.isnan(rates).any():
        raise ValueError("a success rate is NaN: every task needs at least one valid episode")
    generator = np.random.default_rng(seed)
    seeds, tasks = rates.shape
    draws_s = generator.integers(seeds, size=(RESAMPLES, seeds))
    draws_k = generator.integers(tasks, size=(RESAMPLES, tasks))
    counts_s = _counts(draws_s, seeds)
    counts_k = _counts(draws_k, tasks)
    means = np.einsum("bs,sk,bk->b", counts_s, rates, counts_k) / (seeds * tasks)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(float(rates.mean()), float(low), float(high))


def t_interval(rates: Rates) -> Estimate:
    """The mean over seeds of each seed's mean, and Student's interval over the seeds, with these tasks.

    Args:
        rates: ``[S, K]``, at least two seeds.
    """
    means = rates.mean(axis=1)
    degrees = len(means) - 1
    half = T_QUANTILES[min(degrees, len(T_QUANTILES)) - 1] * float(means.std(ddof=1)) / sqrt(len(means))
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


def _counts(draws: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """How often each index occurs in each row of ``draws``."""
    out = np.zeros((len(draws), size))
    np.add.at(out, (np.arange(len(draws))[:, None], draws), 1.0)
    return out
