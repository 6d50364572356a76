"""LEVEL-1 again during training: the current policy follows the plans of tasks whose cached trace is missing or stale.

Not in the paper, which self-rolls once, with the base policy. What it costs is counted in the run's episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.experts.self_rollout import self_roll, train_after_handover
from bepa_torchrl.experts.trace import ExpertTrace
from bepa_torchrl.policies.base import ModelSampler
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector


def reroll(
    policy: ModelSampler,
    vector: DesktopVector,
    cache: TaskTraceCache,
    traces: Sequence[ExpertTrace],
    tasks: Sequence[Task],
    *,
    seed: int,
    iteration: int,
    version: int = 0,
    stale_after: int | None = None,
    tries: int,
    temperature: float,
    max_leak: float,
    plan: Callable[[ExpertTrace], str],
    handover: int = 0,
    after_handover: bool = False,
) -> dict[str, float]:
    """Self-rolls the tasks whose cached trace is missing or stale; what succeeds replaces it.

    Args:
        policy: the current policy.
        vector: desktops.
        cache: is filled; where no attempt succeeds, a stale trace stays.
        traces: expert traces; tasks without one are left out.
        tasks: all training tasks.
        seed: the seed of the run.
        iteration: differs for each call, so that the episodes do.
        version: optimiser steps of the policy.
        stale_after: as of :func:`is_due`.
        tries, temperature, max_leak, plan, handover: as of :func:`~bepa_torchrl.experts.self_rollout.self_roll`.
        after_handover: whether only the steps after the hand-over are trained on.

    Returns:
        ``reroll/tasks``: tasks that were tried, ``reroll/stale`` of them with a stale trace; ``reroll/added``: those
        that succeeded; ``reroll/episodes``.
    """
    due = [trace for trace in traces if is_due(cache, trace.task_id, version, stale_after)]
    chosen = {trace.task_id for trace in due}
    stale = sum(cache.contains(task_id) for task_id in chosen)
    rolled = self_roll(
        policy,
        vector,
        due,
        tasks,
        seed=derive_seed(seed, Stream.SELF_ROLLOUT, iteration),
        tries=tries,
        temperature=temperature,
        max_leak=max_leak,
        plan=plan,
        handover=handover,
    )
    added = TaskTraceCache()
    for task_id, entry in rolled.entries.items():
        added.put(task_id, entry.rows)
    added = train_after_handover(added) if after_handover else added
    for task_id in rolled.entries:
        cache.put(task_id, added.get_trace(task_id))
    return {
        "reroll/tasks": float(len(chosen)),
        "reroll/stale": float(stale),
        "reroll/added": float(len(rolled.entries)),
        "reroll/episodes": float(rolled.episodes),
    }


def is_due(cache: TaskTraceCache, task_id: str, version: int, stale_after: int | None) -> bool:
    """Whether a task is self-rolled again.

    Args:
        cache: the traces.
        task_id: the task.
        version: optimiser steps of the policy.
        stale_after: optimiser steps since its trace was sampled after which it is stale; None: no trace ever is.
    """
    if not cache.contains(task_id):
        return True
    return stale_after is not None and version - cache.metadata(task_id).policy_version >= stale_after
