"""Trace sets scored by one policy, as the paper's histogram has them: raw, converted, self-rolled, refreshed traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.analysis.figures.histogram import REFERENCE
from bepa_torchrl.analysis.prepared import prepared_folder
from bepa_torchrl.analysis.records import MethodRecord
from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.divergence import token_log_probs
from bepa_torchrl.experiment.config import read_settings
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.preparation import load_preparation
from bepa_torchrl.experts import load_traces
from bepa_torchrl.experts.raw_text import raw_pairs
from bepa_torchrl.experts.rows import trace_rows
from bepa_torchrl.experts.trace import TraceError
from bepa_torchrl.policies.base import Policy


def base_policy(record: MethodRecord) -> Policy:
    """The policy that the method was trained from."""
    settings = read_settings(record.folder / "config.yaml")
    return make_policy(settings, seed=settings.seed)


def scored_sets(record: MethodRecord, policy: Policy) -> dict[str, Tensor]:
    """Log-probs ``[L]`` in nats under a policy, by origin; the rollouts are those of version 0, as they were sampled.

    ``raw_expert`` are the expert's traces in its own text, ``refreshed`` the policy's own successes in the cache of the
    newest checkpoint. Sets without a trace are left out.

    Raises:
        FolderError, TraceError: the preparation or the checkpoint is damaged.
    """
    prepared = load_preparation(prepared_folder(record))
    sets = {
        "raw_expert": list(_raw_rows(prepared_folder(record) / "experts", policy)),
        "converted": _rows_of(prepared.converted),
        "self_rolled": _rows_of(prepared.self_rolled),
        "refreshed": [row for row in _rows_of(_newest_cache(record)) if row[K.SOURCE] == K.Source.on_policy.value],
    }
    scored = {name: token_log_probs(policy, rows).clamp_max(0.0) for name, rows in sets.items() if rows}
    sampled = [value for line in record.lines() for step in _base_steps(line) for value in step["log_probs"]]
    known = [value for value in sampled if value is not None]
    return scored | ({REFERENCE: torch.tensor(known).clamp_max(0.0)} if known else {})


def _base_steps(line: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The steps of a rollout of the base policy; none of another episode."""
    return line["steps"] if line["policy_version"] == 0 and not line["off_policy"] else ()


def _raw_rows(experts: Path, policy: Policy) -> Iterator[TensorDictBase]:
    """Rows of the traces that fit the policy's context."""
    for trace in load_traces(experts):
        try:
            rows = trace_rows(policy, trace.task_id, trace.instruction, raw_pairs(trace), source=K.Source.raw_expert)
        except TraceError:
            continue
        yield from row_list(rows)


def _rows_of(cache: TaskTraceCache) -> list[TensorDictBase]:
    return [row for task_id in cache.task_ids() for row in row_list(cache.get_trace(task_id))]


def _newest_cache(record: MethodRecord) -> TaskTraceCache:
    """The cache of the newest checkpoint; empty without one."""
    cache = TaskTraceCache()
    folders = sorted((record.folder / "checkpoints").glob("iteration-*/components/*-cache"))
    if folders:
        cache.loads(folders[-1])
    return cache
