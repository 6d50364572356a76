"""What a run takes besides prompts, responses and updates: desktops, weight syncs, evaluations; and all of it together.

The rates are assumptions, none of which was measured on a GPU: they are written down here, and can be changed by the
options of ``bepa plan``.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

#: bytes per second of a weight sync by a folder: written by the trainer, read by the engine, copied to its GPU. 16.6 GB
#: take 28 s then, of 20 to 40 expected from two passes over a disk
SYNC_RATE = 0.6e9


@dataclass(frozen=True, slots=True)
class Desktops:
    """What plays.

    Args:
        desktops: their number.
        reset_seconds: from the end of an episode to the first screenshot of the next, setup included.
        step_seconds: from a response to the next screenshot.
        overlapped: whether a desktop works while the GPU answers others (an engine's, or ``collect.mode=async``); the
            built-in sampler and the desktops take turns.
    """

    desktops: int
    reset_seconds: float
    step_seconds: float
    overlapped: bool

    def alone(self, episodes: int, steps: int) -> float:
        """Seconds in which the desktops play ``episodes`` with responses that take no time."""
        return math.ceil(episodes / self.desktops) * (self.reset_seconds + steps * self.step_seconds)

    def added(self, episodes: int, steps: int, sampling: float) -> float:
        """Seconds that the desktops add to ``sampling`` seconds of the GPU."""
        alone = self.alone(episodes, steps)
        return max(0.0, alone - sampling) if self.overlapped else alone


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Evaluations of a run by its settings (``eval.*``, ``expert.pass_k``, ``expert.pass_k_file``).

    Args:
        train: number of training tasks.
        held_out: number of held-out tasks.
        pass_k: episodes of the base policy per training task before training; 0: they are read from a file.
        before: whether the base policy is evaluated before training like the final one.
        every: iterations between evaluations; 0: none during training.
        episodes: per task in those.
        final_episodes: sampled episodes per task before and after training; 0: neither is played.
        greedy: whether there is a greedy episode per task as well.
    """

    train: int
    held_out: int
    pass_k: int
    before: bool
    every: int
    episodes: int
    final_episodes: int
    greedy: bool

    def count(self, iterations: int) -> int:
        """Episodes of all evaluations of a run; LEVEL-1's self-rollouts are not among them."""
        tasks = self.train + self.held_out
        whole = tasks * (self.final_episodes + int(self.greedy)) if self.final_episodes else 0
        during = (iterations - 1) // self.every if self.every else 0
        return self.pass_k * self.train + (1 + int(self.before)) * whole + during * self.episodes * tasks


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Seconds of a run.

    Args:
        training: seconds of all iterations.
        evaluations: seconds of all evaluations.
    """

    training: float
    evaluations: float

    @property
    def total(self) -> float:
        """The sum of both."""
        return float(sum(asdict(self).values()))


def sync_seconds(weights: int, adapters: int | None) -> float:
    """Seconds of a weight sync of an engine.

    Args:
        weights: bytes of all weights.
        adapters: bytes of the adapters if they are sent alone; None: all weights are sent.
    """
    return (weights if adapters is None else adapters) / SYNC_RATE


def whole_run(iterations: int, iteration: float, rollouts: float, episodes: int, evaluations: Evaluations) -> WholeRun:
    """Seconds of a run.

    Args:
        iterations: their number.
        iteration: seconds of one.
        rollouts: seconds of those that its rollouts take, desktops included.
        episodes: the episodes of an iteration.
        evaluations: the evaluations of the run.
    """
    played = evaluations.count(iterations)
    return WholeRun(iterations * iteration, played * rollouts / episodes)
