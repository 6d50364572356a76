"""Metadata of a cached trace: its origin and how often it was injected."""

from __future__ import annotations

from dataclasses import dataclass

from tensordict import TensorDictBase

from bepa_torchrl.data import keys


@dataclass(frozen=True, slots=True)
class TraceMetadata:
    """Provenance of one trace.

    Args:
        task_id: the task.
        source: value of a :class:`bepa_torchrl.data.keys.Source`.
        policy_version: optimiser steps of the policy that sampled it.
        episode_return: R(tau); 1.0, since only successes are cached.
        steps: number of rows.
        serial: number of traces put into the cache before it.
        injected: how often it has been injected into a group.
        provenance: the expert's run behind it, as in its rows (:mod:`bepa_torchrl.data.provenance`); empty for the
            policy's own successes.
    """

    task_id: str
    source: str
    policy_version: int
    episode_return: float
    steps: int
    serial: int
    injected: int = 0
    provenance: str = ""


def describe(trace: TensorDictBase, serial: int) -> TraceMetadata:
    """The metadata of a trace, read from its rows.

    Args:
        trace: rows ``[S]`` of one episode in order.
        serial: number of traces put into the cache before it.

    Raises:
        TypeError: no tensordict, as a list of rows.
        ValueError: not ``[S]`` with S >= 1, rows of several tasks, other than the whole episode, or one that did not
            succeed.
        KeyError: a row lacks one of the keys that describe its origin.
    """
    if not isinstance(trace, TensorDictBase):
        raise TypeError(
            f"a trace is a tensordict [S], got {type(trace).__name__}; stack the rows of an episode: lazy_stack(rows)"
        )
    if trace.batch_dims != 1 or len(trace) == 0:
        raise ValueError(f"a trace is a non-empty stack of rows [S]; got batch size {list(trace.batch_size)}")
    rows = trace.unbind(0)
    required = (keys.TASK_ID, keys.SOURCE, keys.POLICY_VERSION, keys.RETURN, keys.STEP, keys.N_STEPS)
    missing = sorted({key for row in rows for key in required if key not in row})
    if missing:
        raise KeyError(f"the rows of a trace require {', '.join(required)}; missing: {', '.join(missing)}")
    task_ids = {row[keys.TASK_ID] for row in rows}
    if len(task_ids) != 1:
        raise ValueError(f"a trace belongs to one task; its rows name {sorted(task_ids)}")
    steps, count = [int(row[keys.STEP]) for row in rows], int(rows[0][keys.N_STEPS])
    if steps != list(range(count)):
        raise ValueError(
            f"a trace is a whole episode in order, whose prompts are rendered from its steps 0 to {count - 1}; this "
            f"one of {task_ids} has steps {steps}; pass every row of one episode, sorted by {keys.STEP!r}"
        )
    episode_return = float(rows[0][keys.RETURN])
    if episode_return != 1.0:
        raise ValueError(f"only successes (return 1) are cached; this trace of {task_ids} has {episode_return:g}")
    return TraceMetadata(
        task_id=str(task_ids.pop()),
        source=str(rows[0][keys.SOURCE]),
        policy_version=int(rows[0][keys.POLICY_VERSION]),
        episode_return=episode_return,
        steps=len(rows),
        serial=serial,
        provenance=str(rows[0][keys.PROVENANCE]) if keys.PROVENANCE in rows[0] else "",
    )
