"""How wide the intervals of a comparison are, before it is run: what more episodes, seeds and tasks narrow."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from scipy import stats

_NORMAL = float(stats.norm.ppf(0.975))


@dataclass(frozen=True)
class Spread:
    """Where success rates vary; all as variances of rates in [0, 1].

    Args:
        within: mean over tasks of p (1 - p): what an episode's outcome varies by, on the same task.
        seeds: of a policy's mean success between trainings, without what the evaluation's episodes add.
        tasks: of the tasks' rates, or of their differences between two methods.
    """

    within: float
    seeds: float = 0.0
    tasks: float = 0.0


def evaluation_half_width(spread: Spread, *, tasks: int, episodes: int) -> float:
    """Half of the 95 % interval of one policy's success on these tasks: only the episodes are random."""
    return _NORMAL * sqrt(spread.within / (tasks * episodes))


def seeds_half_width(spread: Spread, *, tasks: int, episodes: int, seeds: int) -> float:
    """Half of Student's interval of a mean over trainings, on these tasks (``evaluation.statistics.t_interval``).

    Args:
        spread: for a difference of two methods, the sums of both methods' ``within`` and ``seeds``.
        tasks, episodes: number of tasks, and of episodes per task.
        seeds: number of trainings, at least 2.
    """
    variance = spread.seeds + spread.within / (tasks * episodes)
    return float(stats.t.ppf(0.975, seeds - 1)) * sqrt(variance / seeds)


def tasks_half_width(spread: Spread, *, tasks: int) -> float:
    """Half of the interval for other tasks of the same kind; no number of episodes makes it narrower."""
    return _NORMAL * sqrt(spread.tasks / tasks)


def tasks_for(spread: Spread, half_width: float) -> int:
    """The number of tasks for which :func:`tasks_half_width` is at most ``half_width``."""
    return int(-(-((_NORMAL / half_width) ** 2 * spread.tasks) // 1))
