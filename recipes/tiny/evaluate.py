"""What a base policy must show on the simulated suite before a comparison of methods means anything.

BEPA requires that unknown tasks are rarely solved alone and mostly solved with the expert's plan; that the expert's
dialect is understood but not preferred; and that its traces are as far from the policy as the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bepa_torchrl.data.seeding import Stream, derive_seed, desktop_seed, episode_key
from bepa_torchrl.experts.plan import plan_from_trace
from bepa_torchrl.experts.recorder import record_expert
from bepa_torchrl.experts.self_rollout import SelfRolloutSet, self_roll
from bepa_torchrl.experts.trace import ExpertTrace
from bepa_torchrl.policies.base import ModelSampler, Policy
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suites.sim.suite import KNOWN, UNKNOWN, sim_suite
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector
from recipes.tiny.dialect import EXPERT_START, PrefixedPolicy, share_in_dialect
from recipes.tiny.divergence import divergence, trace_sets

NUM_ENVS = 64  #: maximum number of desktops at a time
DRAWS = 4  #: sets of self-rollouts for the divergence


@dataclass(frozen=True)
class SuccessSpread:
    """Success rates in [0, 1] on one split, sampled at temperature 1.

    Args:
        known: known tasks (covered by the cloning data).
        unknown: the other tasks, without plan.
        unknown_planned: the other tasks with the expert's plan, recorded at another seed.
        known_planned: known tasks with the plan.
        never: share of the unknown tasks that no episode without plan solved.
    """

    known: float
    unknown: float
    unknown_planned: float
    known_planned: float
    never: float

    def to_json(self) -> dict[str, float]:
        """Rounded to four digits."""
        return {key: round(value, 4) for key, value in asdict(self).items()}


def play(
    policy: ModelSampler,
    tasks: Sequence[Task],
    *,
    episodes: int,
    seed: int,
    planned: bool = False,
    temperature: float = 1.0,
) -> list[EpisodeResult]:
    """``episodes`` episodes per task, in the tasks' order; each has a separate desktop seed derived from ``seed``.

    Args:
        policy: acts.
        tasks: tasks of the simulated suite.
        episodes: per task.
        seed: the seed of desktops, sampling and expert's runs.
        planned: whether the prompts contain the expert's plan, recorded at another seed.
        temperature: the temperature of the sampling.
    """
    jobs = []
    for number, task in enumerate(tasks):
        plan = expert_plan(task, derive_seed(seed, Stream.EXPERT, number, episodes)) if planned else None
        for slot in range(episodes):
            key = episode_key(seed, Stream.TINY_EVALUATION, int(planned), number, slot)
            jobs.append(EpisodeJob(task, key, desktop_seed(key), number, slot, plan))
    vector = _desktops(policy, len(jobs))
    try:
        return run_episodes(policy, vector, jobs, temperature=temperature)
    finally:
        vector.close()


def success_rate(results: Sequence[EpisodeResult]) -> float:
    """The share of successful episodes."""
    return sum(result.success for result in results) / len(results)


def expert_plan(task: Task, seed: int) -> str:
    """The plan from the expert's run at a desktop seed."""
    return plan_from_trace(record_expert(SimDesktop(), task, seed))


def spread(policy: ModelSampler, split: str, *, episodes: int, seed: int) -> tuple[SuccessSpread, list[EpisodeResult]]:
    """Evaluates a policy on one split of the simulated suite; also returns the episodes without a plan."""
    tasks = sim_suite().split(split)
    played = {
        (tag, planned): play(
            policy, [task for task in tasks if tag in task.tags], episodes=episodes, seed=seed, planned=planned
        )
        for tag in (KNOWN, UNKNOWN)
        for planned in (False, True)
    }
    alone = played[UNKNOWN, False]
    solved = {result.job.task.id for result in alone if result.success}
    found = SuccessSpread(
        known=success_rate(played[KNOWN, False]),
        unknown=success_rate(alone),
        unknown_planned=success_rate(played[UNKNOWN, True]),
        known_planned=success_rate(played[KNOWN, True]),
        never=1 - len(solved) * episodes / len(alone),
    )
    return found, [*played[KNOWN, False], *alone]


@dataclass(frozen=True)
class Evidence:
    """What the figures of a base policy are computed from.

    Args:
        figures: the result of :func:`measure`.
        traces: the expert's trace of every training task.
        drawn: D_self of the training tasks, once per draw.
        rollouts: episodes of the training tasks without a plan.
        expert_only: ids of the training tasks with a self-rollout that no episode without a plan solved.
    """

    figures: dict[str, Any]
    traces: list[ExpertTrace]
    drawn: list[SelfRolloutSet]
    rollouts: list[EpisodeResult]
    expert_only: frozenset[str]


def measure(policy: Policy, *, episodes: int, seed: int) -> dict[str, Any]:
    """Everything that the gate of :mod:`recipes.tiny.gate` is about; rates in [0, 1], at temperature 1.

    Args:
        policy: a policy for the simulated desktop.
        episodes: per task and setting.
        seed: the seed of all random choices.

    Returns:
        ``train`` and ``held_out``: see :class:`SuccessSpread`. ``dialect``: ``prompted_known``, the success rate on
        known training tasks when every response starts like the expert's, and ``unprompted_share`` of the responses
        that start so unasked. ``divergence``: see :func:`recipes.tiny.divergence.divergence`. ``self_rolled``:
        training tasks with a self-rollout after one try. ``expert_only``: those of them that ``episodes`` episodes
        without a plan never solved.
    """
    return evidence(policy, episodes=episodes, seed=seed).figures


def evidence(policy: Policy, *, episodes: int, seed: int) -> Evidence:
    """Measures a policy; the arguments are those of :func:`measure`."""
    train, rollouts = spread(policy, "train", episodes=episodes, seed=seed)
    held_out, _ = spread(policy, "held_out", episodes=episodes, seed=seed)
    tasks = sim_suite().split("train")
    prompted = play_known(PrefixedPolicy(policy, EXPERT_START), "train", episodes=episodes, seed=seed)
    traces = [record_expert(SimDesktop(), task, derive_seed(seed, Stream.EXPERT, i)) for i, task in enumerate(tasks)]
    vector = _desktops(policy, len(tasks))
    try:
        drawn = [self_roll(policy, vector, traces, tasks, seed=seed + 1_000 * draw) for draw in range(DRAWS)]
    finally:
        vector.close()
    solved = {result.job.task.id for result in rollouts if result.success}
    selfrolled = drawn[0].entries
    expert_only = frozenset(set(selfrolled) - solved)
    figures = {
        "train": train.to_json(),
        "held_out": held_out.to_json(),
        "dialect": {
            "prompted_known": round(success_rate(prompted), 4),
            "unprompted_share": round(share_in_dialect(rollouts), 4),
        },
        "divergence": divergence(policy, trace_sets(policy, traces, drawn, rollouts)),
        "self_rolled": len(selfrolled),
        "expert_only": len(expert_only),
    }
    return Evidence(figures, traces, drawn, rollouts, expert_only)


def play_known(policy: ModelSampler, split: str, *, episodes: int, seed: int) -> list[EpisodeResult]:
    """Episodes of the known tasks of one split, without a plan; the arguments are those of :func:`play`."""
    known = [task for task in sim_suite().split(split) if KNOWN in task.tags]
    return play(policy, known, episodes=episodes, seed=seed)


def _desktops(policy: ModelSampler, episodes: int) -> DesktopVector:
    return DesktopVector(SimDesktop, min(NUM_ENVS, episodes), EpisodeOptions(scaling=policy.renderer.image_scaling))
