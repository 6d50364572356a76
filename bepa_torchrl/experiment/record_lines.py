"""The lines of ``episodes.jsonl``: an episode's fields, and those of a step, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import provenance_of
from bepa_torchrl.data.step_rows import int_entry, is_trained, row_list
from bepa_torchrl.rollout.episodes import EpisodeResult

Kind = tuple[Any, ...]  #: of which the first episode is kept whole


def trained_line(iteration: int, rows: Sequence[TensorDictBase]) -> dict[str, Any]:
    """An episode that was trained on, without its steps.

    ``updates`` are the policy's versions after the optimiser steps that its rows were in, none if no step was taken;
    ``age`` is the number of optimiser steps between the policy that sampled it and the first of these.

    Args:
        iteration: the iteration.
        rows: the rows of the episode, after the optimiser steps.
    """
    first = next((row for row in rows if is_trained(row)), rows[0])
    version, off_policy = int_entry(first, K.POLICY_VERSION), bool(first.get(K.OFF_POLICY))
    copied = cast(str, first[K.COPIED_FROM]) if K.COPIED_FROM in first else ""
    updates = [int(update) for update in cast(Tensor, first.get(K.UPDATES))] if K.UPDATES in first else []
    group, slot, provenance = int_entry(first, K.GROUP_ID), int_entry(first, K.SLOT), provenance_of(first)
    return {
        "id": K.episode_id(group, slot, injected=off_policy),
        "iteration": iteration,
        "group_id": group,
        "slot": slot,
        "task_id": first[K.TASK_ID],
        "instruction": first[K.INSTRUCTION],
        "source": first[K.SOURCE],
        "provenance": None if provenance is None else provenance.to_json(),
        "copied_from": copied or None,
        "off_policy": off_policy,
        "replaced": False,
        "trained": True,
        "policy_version": version,
        "updates": updates,
        "age": updates[0] - 1 - version if updates else None,
        "stop_reason": first[K.STOP_REASON],
        "reward": float(cast(Tensor, first.get(K.RETURN))),
        "advantage": float(cast(Tensor, first.get(K.ADVANTAGE))),
        "failure": None,
        "n_steps": len(rows),
        "replayed_steps": 0 if off_policy else sum(not is_trained(row) for row in rows),
    }


def untrained_line(iteration: int, result: EpisodeResult, *, replaced: bool = False) -> dict[str, Any]:
    """A rollout that was not trained on, without its steps.

    Args:
        iteration: the iteration.
        result: the rollout.
        replaced: whether a cached trace took its place.
    """
    rows = [] if result.rows is None else row_list(result.rows)
    return {
        "id": K.episode_id(result.job.group_id, result.job.slot),
        "iteration": iteration,
        "group_id": result.job.group_id,
        "slot": result.job.slot,
        "task_id": result.job.task.id,
        "instruction": result.job.task.instruction,
        "source": K.Source.on_policy.value,
        "provenance": None,
        "copied_from": None,
        "off_policy": False,
        "replaced": replaced,
        "trained": False,
        "policy_version": int_entry(rows[0], K.POLICY_VERSION) if rows else None,
        "updates": [],
        "age": None,
        "stop_reason": result.stop.value,
        "reward": None if result.verdict is None else float(result.success),
        "advantage": None,
        "failure": None if result.failure is None else result.failure.value,
        "n_steps": len(rows),
        "replayed_steps": result.replayed,
    }


def kind_of(line: Mapping[str, Any]) -> Kind:
    """Task, source and outcome of an episode."""
    return (line["task_id"], line["source"], line["off_policy"], line["reward"], line["failure"])


def step_fields(row: TensorDictBase) -> dict[str, Any]:
    """The fields of a step but its screenshot.

    ``log_probs`` are the sampler's, ``old_log_probs`` those that the loss was given, ``new_log_probs`` those that it
    computed in the last optimiser step, in nats; None where unknown. ``clipped`` are the indices of the tokens where
    the clip bound; None where the loss did not compute the row in this process.
    """
    clipped = row.get(K.CLIPPED) if K.CLIPPED in row else None
    return {
        "text": row[K.RESPONSE],
        "tokens": cast(Tensor, row.get(K.RESPONSE_TOKENS)).tolist(),
        "log_probs": _log_probs(row.get(K.ROLLOUT_LOG_PROB)),
        "old_log_probs": _log_probs(row.get(K.OLD_LOG_PROB)),
        "new_log_probs": _log_probs(row.get(K.LOG_PROB)) if K.LOG_PROB in row else None,
        "clipped": None if clipped is None else clipped.nonzero().reshape(-1).tolist(),
    }


def _log_probs(values: Any) -> list[float | None]:
    """Log-probs rounded to six digits; None for NaN, which is not valid JSON."""
    return [None if math.isnan(value) else round(value, 6) for value in cast(Tensor, values).tolist()]
