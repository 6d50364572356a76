"""LEVEL-1 again during training: the current policy follows the plans of tasks that the cache has no trace of.

Not in the paper, which self-rolls once, with the base policy. What it costs is counted in the run's episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.experts.self_rollout import SelfRolloutPolicy, self_roll
from bepa_torchrl.experts.trace import ExpertTrace
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector


def reroll(
    policy: SelfRolloutPolicy,
    vector: DesktopVector,
    cache: TaskTraceCache,
    traces: Sequence[ExpertTrace],
    tasks: Sequence[Task],
    *,
    seed: int,
    iteration: int,
    tries: int,
    temperature: float,
    max_leak: float,
    plan: Callable[[ExpertTrace], str],
) -> dict[str, float]:
    """Self-rolls the tasks without a cached trace and adds what succeeds to the cache.

    Args:
        policy: the current policy.
        vector: desktops.
        cache: is filled.
        traces: expert traces; tasks without one are left out.
        tasks: all training tasks.
        seed: of the run.
        iteration: differs for each call, so that the episodes do.
        tries, temperature, max_leak, plan: as of :func:`~bepa_torchrl.experts.self_rollout.self_roll`.

    Returns:
        ``reroll/tasks``: tasks that were tried; ``reroll/added``: those that succeeded; ``reroll/episodes``.
    """
    missing = [trace for trace in traces if not cache.contains(trace.task_id)]
    rolled = self_roll(
        policy,
        vector,
        missing,
        tasks,
        seed=derive_seed(seed, Stream.SELF_ROLLOUT, iteration),
        tries=tries,
        temperature=temperature,
        max_leak=max_leak,
        plan=plan,
    )
    for task_id, entry in rolled.entries.items():
        cache.put(task_id, entry.rows)
    counts = (len({trace.task_id for trace in missing}), len(rolled.entries), rolled.episodes)
    return dict(zip(("reroll/tasks", "reroll/added", "reroll/episodes"), map(float, counts), strict=True))
