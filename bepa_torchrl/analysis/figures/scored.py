"""Trace sets scored by one policy, as the paper's histogram has them: raw, converted, self-rolled, refreshed traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.analysis.figures.histogram import REFERENCE, TraceSets, whole_iterations
from bepa_torchrl.analysis.prepared import prepared_folder
from bepa_torchrl.analysis.records import MethodRecord
from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.evaluation.divergence import token_log_probs, turn_log_probs
from bepa_torchrl.experiment.config import read_settings
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.preparation import load_preparation
from bepa_torchrl.experts import load_traces
from bepa_torchrl.experts.raw_text import raw_pairs, worker_messages
from bepa_torchrl.experts.rows import trace_rows
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from bepa_torchrl.policies.base import Policy, Renderer
from bepa_torchrl.policies.transformers.renderer import ChatRenderer

#: why steps of the raw traces are left out
_CONTEXT, _SCREENSHOT = "beyond the policy's context", "of a trace without all screenshots"
_TRACE_CONTEXT = "of a trace with a step beyond the policy's context"
Turns = list[tuple[Prompt, Tensor]]  #: prompts, and int64 ``[L]`` tokens of their responses


def base_policy(record: MethodRecord) -> Policy:
    """The policy that the method was trained from."""
    settings = read_settings(record.folder / "config.yaml")
    return make_policy(settings, seed=settings.seed)


def scored_sets(
    record: MethodRecord, policy: Policy, tasks: Collection[str] | None = None, *, worker: bool = False
) -> TraceSets:
    """Log-probs ``[L]`` in nats under a policy, by origin; those of the rollouts are as they were sampled.

    ``raw_expert`` are the expert's traces in its own text, ``refreshed`` the policy's own successes in the cache of the
    newest checkpoint. Sets without a trace are left out; steps of raw traces that are left out are counted.

    Args:
        record: of a method.
        policy: scores the traces.
        tasks: ids of the tasks whose traces count, such as D_upd; None: all. The rollouts are those of version 0, and
            with ``tasks`` those of each task's first iteration that the record has whole: version 0 has played the
            tasks of the first iteration only.
        worker: whether Agent S2's raw traces are scored as in the paper, each step as a single turn under the prompt of
            S2's worker (:func:`worker_turns`); otherwise under the policy's own prompts, with the raw texts of the
            steps before. Those of other experts, which have no worker, always are.

    Raises:
        FolderError, TraceError: the preparation or the checkpoint is damaged.
        ValueError: ``worker`` with a policy that has another renderer than checkpoints with a chat template.
    """
    prepared = load_preparation(prepared_folder(record))
    cached = _rows_of(_newest_cache(record), tasks)
    raw, left_out = raw_turns(prepared_folder(record) / "experts", policy, tasks, worker=worker)
    sets = {
        "converted": _rows_of(prepared.converted, tasks),
        "self_rolled": _rows_of(prepared.self_rolled, tasks),
        "refreshed": [row for row in cached if row[K.SOURCE] == K.Source.on_policy.value],
    }
    scored = {"raw_expert": turn_log_probs(policy, raw).clamp_max(0.0)} if raw else {}
    scored |= {name: token_log_probs(policy, rows).clamp_max(0.0) for name, rows in sets.items() if rows}
    sampled = version_0(record) if tasks is None else first_rollouts(record, tasks)
    scored |= {REFERENCE: torch.tensor(sampled).clamp_max(0.0)} if sampled else {}
    return TraceSets(scored, {K.Source.raw_expert.value: left_out} if left_out else {})


def version_0(record: MethodRecord) -> list[float]:
    """Log-probs of the base policy's recorded rollouts as they were sampled, nats."""
    rollouts = (line for line in record.lines() if line["policy_version"] == 0 and not line["off_policy"])
    steps = (step for line in rollouts for step in line["steps"])
    return [value for step in steps for value in step["log_probs"] or () if value is not None]


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


def worker_turns(renderer: Renderer, trace: ExpertTrace) -> Turns:
    """The steps of an Agent S2 trace as single turns: the prompt of its worker, and the tokens of what it wrote.

    Paper, appendix "Log-Probability on S2 Raw Traces". Steps that exceed the policy's context are left out.

    Raises:
        TraceError: a screenshot is missing.
        ValueError: a renderer that takes no chat messages.
    """
    if not isinstance(renderer, ChatRenderer):
        raise ValueError(
            f"the worker's prompts require a checkpoint with a chat template, got {type(renderer).__name__}; leave "
            "--worker out"
        )
    texts = [text for _, text in raw_pairs(trace)]
    prompts = renderer.render_messages([worker_messages(trace, index) for index in range(len(texts))])
    turns = zip(prompts, texts, strict=True)
    return [(prompt, renderer.encode_response(text)) for prompt, text in turns if prompt is not None]


def raw_turns(
    experts: Path, policy: Policy, tasks: Collection[str] | None, *, worker: bool
) -> tuple[Turns, Counter[str]]:
    """The steps of the raw traces that fit the policy's context, and the numbers of the others by reason.

    As single turns (``worker``) each step by itself is left out; otherwise the whole trace.

    Args:
        experts: folder of the traces.
        policy: whose prompts and tokens they get.
        tasks: ids of the tasks that count; None: all.
        worker: as of :func:`scored_sets`.
    """
    turns: Turns = []
    left_out: Counter[str] = Counter()
    for trace in load_traces(experts):
        if tasks is not None and trace.task_id not in tasks:
            continue
        try:
            pairs = raw_pairs(trace)
        except TraceError:
            left_out[_SCREENSHOT] += len(trace.steps)
            continue
        if worker and all(step.subtask and step.response is None for step in trace.steps):
            fitting = worker_turns(policy.renderer, trace)
            turns += fitting
            left_out[_CONTEXT] += len(pairs) - len(fitting)
            continue
        try:
            rows = trace_rows(policy, trace.task_id, trace.instruction, pairs, source=K.Source.raw_expert)
        except TraceError:
            left_out[_TRACE_CONTEXT] += len(pairs)
            continue
        turns += [
            (Prompt(row[K.PROMPT_TOKENS], tuple(row[K.IMAGES])), row[K.RESPONSE_TOKENS]) for row in row_list(rows)
        ]
    return turns, +left_out


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
