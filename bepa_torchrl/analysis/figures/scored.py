"""Trace sets scored by one policy, as the paper's histogram has them: raw, converted, self-rolled, refreshed traces."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.analysis.figures.histogram import REFERENCE, whole_iterations
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


def scored_sets(record: MethodRecord, policy: Policy, tasks: Collection[str] | None = None) -> dict[str, Tensor]:
    """Log-probs ``[L]`` in nats under a policy, by origin; those of the rollouts are as they were sampled.

    ``raw_expert`` are the expert's traces in its own text, ``refreshed`` the policy's own successes in the cache of the
    newest checkpoint. Sets without a trace are left out.

    Args:
        record: of a method.
        policy: scores the traces.
        tasks: ids of the tasks whose traces count, such as D_upd; None: all. The rollouts are those of version 0, and
            with ``tasks`` those of each task's first iteration that the record has whole: version 0 has played the
            tasks of the first iteration only.

    Raises:
        FolderError, TraceError: the preparation or the checkpoint is damaged.
    """
    prepared = load_preparation(prepared_folder(record))
    cached = _rows_of(_newest_cache(record), tasks)
    sets = {
        "raw_expert": list(_raw_rows(prepared_folder(record) / "experts", policy, tasks)),
        "converted": _rows_of(prepared.converted, tasks),
        "self_rolled": _rows_of(prepared.self_rolled, tasks),
        "refreshed": [row for row in cached if row[K.SOURCE] == K.Source.on_policy.value],
    }
    scored = {name: token_log_probs(policy, rows).clamp_max(0.0) for name, rows in sets.items() if rows}
    sampled = version_0(record) if tasks is None else first_rollouts(record, tasks)
    return scored | ({REFERENCE: torch.tensor(sampled).clamp_max(0.0)} if sampled else {})


def version_0(record: MethodRecord) -> list[float]:
    """Log-probs of the base policy's recorded rollouts as they were sampled, nats."""
    rollouts = (line for line in record.lines() if line["policy_version"] == 0 and not line["off_policy"])
    return [value for line in rollouts for step in line["steps"] for value in step["log_probs"] if value is not None]


def first_rollouts(record: MethodRecord, tasks: Collection[str]) -> list[float]:
    """Log-probs, as sampled, of the rollouts of each task in the first iteration with it that is kept whole, nats."""
    whole, first = whole_iterations(record), dict[str, int]()
    log_probs: list[float] = []
    for line in record.lines():
        task, iteration = line["task_id"], line["iteration"]
        if task not in tasks or line["off_policy"] or iteration not in whole:
            continue
        if first.setdefault(task, iteration) == iteration:
            log_probs += [value for step in line["steps"] for value in step["log_probs"] or () if value is not None]
    return log_probs


def _raw_rows(experts: Path, policy: Policy, tasks: Collection[str] | None) -> Iterator[TensorDictBase]:
    """Rows of the traces that fit the policy's context."""
    for trace in load_traces(experts):
        if tasks is not None and trace.task_id not in tasks:
            continue
        try:
            rows = trace_rows(policy, trace.task_id, trace.instruction, raw_pairs(trace), source=K.Source.raw_expert)
        except TraceError:
            continue
        yield from row_list(rows)


def _rows_of(cache: TaskTraceCache, tasks: Collection[str] | None) -> list[TensorDictBase]:
    wanted = [task_id for task_id in cache.task_ids() if tasks is None or task_id in tasks]
    return [row for task_id in wanted for row in row_list(cache.get_trace(task_id))]


def _newest_cache(record: MethodRecord) -> TaskTraceCache:
    """The cache of the newest checkpoint; empty without one."""
    cache = TaskTraceCache()
    folders = sorted((record.folder / "checkpoints").glob("iteration-*/components/*-cache"))
    if folders:
        cache.loads(folders[-1])
    return cache
