"""The preparation shared by all methods of a run: expert traces, D_conv, LEVEL-1's D_self, the manifest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.evaluation.success_rate import Evaluation, evaluate
from bepa_torchrl.experiment.factory import Tasks
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experts import (
    ExpertTrace,
    Manifest,
    SelfRolloutSet,
    TraceError,
    check_disjoint,
    convert_trace,
    plan_from_trace,
    record_expert,
    save_traces,
    self_roll,
    successful_traces,
    task_hashes,
    trace_rows,
)
from bepa_torchrl.policies.base import ActingPolicy
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.storage import read_folder, write_folder
from osworld_gym.atomic import new_folder
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.errors import DesktopError
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

_log = logging.getLogger(__name__)
Note = Callable[[str], None]


@dataclass(frozen=True)
class Preparation:
    """The data that all methods of a run start from.

    Args:
        manifest: the task sets, by id and hash.
        converted: D_conv as a cache, one trace per training task.
        self_rolled: D_self as a cache.
        base: evaluations of the base policy, ``greedy`` and ``sampled``.
        metrics: counts and seconds of the preparation.
    """

    manifest: Manifest
    converted: TaskTraceCache
    self_rolled: TaskTraceCache
    base: dict[str, Evaluation]
    metrics: dict[str, float]


def expert_traces(settings: Settings, tasks: Sequence[Task]) -> list[ExpertTrace]:
    """Successful traces of these tasks, from ``expert.logs`` or else recorded from the tasks' oracles.

    Raises:
        TraceError: the logs cannot be read, or contain no success.
    """
    if settings.expert.logs:
        return successful_traces(list(settings.expert.logs), tasks)
    return record_experts(settings, tasks)


def record_experts(settings: Settings, tasks: Sequence[Task]) -> list[ExpertTrace]:
    """Records one successful run of each task's oracle, in parallel; unsolved tasks are left out.

    The desktops are separate from the run's, ``env.desktops`` of them, or a single one within this process. A run that
    failed because of the infrastructure is repeated once.
    """
    env = settings.env
    numbered = [(number, task) for number, task in enumerate(tasks) if task.oracle is not None]
    idle: SimpleQueue[Desktop] = SimpleQueue()

    def record(numbered_task: tuple[int, Task]) -> ExpertTrace | None:
        desktop = idle.get()  # there is one for each thread
        try:
            return _record_expert(settings, desktop, *numbered_task)
        finally:
            idle.put(desktop)

    with ExitStack() as opened:
        first = opened.enter_context(make_desktop(env.provider, **env.options))
        count = min(env.desktops, len(numbered)) if first.blocking else 1
        idle.put(first)
        for _ in range(count - 1):
            idle.put(opened.enter_context(make_desktop(env.provider, **env.options)))
        with ThreadPoolExecutor(max(1, count), thread_name_prefix="expert") as threads:
            return [trace for trace in threads.map(record, numbered) if trace is not None]


def _record_expert(settings: Settings, desktop: Desktop, number: int, task: Task) -> ExpertTrace | None:
    """A task's trace; None if its oracle does not solve it, or if the desktop failed twice."""
    for attempt in range(2):
        try:
            seed = derive_seed(settings.seed, Stream.EXPERT, number, attempt)
            trace = record_expert(desktop, task, seed, style=settings.expert.oracle_style)
        except DesktopError as error:
            _log.warning("expert on task %s: %s", task.id, error)
            continue
        return trace if trace.success else None
    return None


def prepare(
    settings: Settings,
    policy: ActingPolicy,
    vector: DesktopVector,
    tasks: Tasks,
    traces: Sequence[ExpertTrace],
    *,
    note: Note,
    record: RunRecord | None = None,
) -> Preparation:
    """Converts the traces, runs LEVEL-1, and evaluates the base policy.

    Args:
        traces: expert traces of the training tasks.
        note: is called with a line about each stage.
        record: where the episodes of the base policy's evaluation are kept; None: nowhere.
    """
    started = perf_counter()
    metrics = {"expert_traces": float(len(traces))}
    converted = convert_all(policy, traces, settings.policy.action_text)
    note(f"LEVEL-1: the base policy follows {len(traces)} plans")
    self_rolled, rolled = self_roll_all(settings, policy, vector, tasks.train, traces)
    metrics |= {"converted": float(len(converted)), "self_rolled": float(len(self_rolled))}
    metrics |= {"self_roll_episodes": float(rolled.episodes), "self_roll_failures": float(rolled.failures)}
    metrics["plan_leak_rate"] = rolled.leak_rate
    note(f"LEVEL-1: {len(self_rolled)} of {len(traces)} succeeded; base policy, pass@{settings.expert.pass_k}")
    base = measure_base(settings, policy, vector, tasks, record=record)
    passed = base.pop("pass_k")
    manifest = Manifest(
        hashes=task_hashes([*tasks.train, *tasks.held_out]),
        train=tuple(task.id for task in tasks.train),
        held_out=tuple(task.id for task in tasks.held_out),
        expert=tuple(dict.fromkeys(trace.task_id for trace in traces)),
        converted=tuple(converted.task_ids()),
        self_rolled=tuple(self_rolled.task_ids()),
        base_solved=tuple(task for task, (wins, _) in passed.counts.items() if wins),
    )
    for cache in (converted, self_rolled):
        check_disjoint(cache.task_ids(), manifest.held_out)
    metrics |= {f"failed_{reason.value}": float(count) for reason, count in vector.failures.items()}
    metrics["seconds"] = perf_counter() - started
    return Preparation(manifest, converted, self_rolled, base, metrics)


def convert_all(policy: ActingPolicy, traces: Sequence[ExpertTrace], action_text: str = "uitars") -> TaskTraceCache:
    """D_conv as a cache: the traces in the policy's format, without plan.

    Per task it contains the first trace that fits the policy's context length.
    """
    cache = TaskTraceCache()
    for trace in traces:
        if trace.task_id in cache.task_ids():
            continue
        try:
            pairs = convert_trace(trace, policy.image_scaling, action_text=action_text).pairs
            cache.put(trace.task_id, trace_rows(policy, trace.task_id, trace.instruction, pairs))
        except TraceError as error:
            _log.warning("left out of D_conv: %s", error)
    return cache


def self_roll_all(
    settings: Settings,
    policy: ActingPolicy,
    vector: DesktopVector,
    tasks: Sequence[Task],
    traces: Sequence[ExpertTrace],
) -> tuple[TaskTraceCache, SelfRolloutSet]:
    """LEVEL-1: D_self as a cache, and the counts of the self-rollouts."""
    rolled = self_roll(
        policy,
        vector,
        traces,
        tasks,
        seed=settings.seed,
        tries=settings.expert.selfroll_attempts,
        budget=settings.expert.selfroll_budget,
        temperature=settings.collect.temperature,
        max_leak=settings.expert.max_leak,
        plan=lambda trace: plan_from_trace(trace, source=settings.expert.plan_source),
    )
    cache = TaskTraceCache()
    for task_id, entry in rolled.entries.items():
        cache.put(task_id, entry.rows)
    return cache, rolled


def measure_base(
    settings: Settings, policy: ActingPolicy, vector: DesktopVector, tasks: Tasks, *, record: RunRecord | None = None
) -> dict[str, Evaluation]:
    """Evaluates the base policy: ``pass_k`` on the training tasks, ``greedy`` and ``sampled`` on all tasks."""
    every, retries = [*tasks.train, *tasks.held_out], settings.collect.retries
    # the episodes that define the expert-only set differ from those that later evaluate it
    out = {
        "pass_k": evaluate(
            policy, vector, tasks.train, episodes=settings.expert.pass_k, temperature=1.0,
            seed=settings.eval.seed + 1, retries=retries,
        )
    }  # fmt: skip
    if settings.eval.final_episodes:
        out |= final_evaluation(settings, policy, vector, every, record=record)
    return out


def final_evaluation(
    settings: Settings,
    policy: ActingPolicy,
    vector: DesktopVector,
    tasks: Sequence[Task],
    *,
    record: RunRecord | None = None,
) -> dict[str, Evaluation]:
    """``greedy`` (one episode per task) and ``sampled`` (``eval.final_episodes``), with the evaluation's seed.

    Args:
        record: keeps the episodes with their screenshots; None: only their counts are kept.
    """
    seed, retries = settings.eval.seed, settings.collect.retries
    modes = {"greedy": (1, 0.0), "sampled": (settings.eval.final_episodes, 1.0)}
    played: dict[str, Sequence[EpisodeResult]] = {}
    out = {
        mode: evaluate(
            policy, vector, tasks, episodes=episodes, temperature=temperature, seed=seed, retries=retries,
            keep=None if record is None else partial(played.__setitem__, mode),
        )
        for mode, (episodes, temperature) in modes.items()
    }  # fmt: skip
    if record is not None:
        record.outcomes(played)
    return out


_BASE: dict[str, Any] = {"format": "bepa_torchrl.base_policy", "version": 1}  #: of the base policy's evaluation


def save_preparation(prepared: Preparation, traces: Sequence[ExpertTrace], folder: Path) -> None:
    """Writes the folder atomically."""
    with new_folder(folder) as part:
        save_traces(traces, part / "experts")
        prepared.converted.dumps(part / "converted")
        prepared.self_rolled.dumps(part / "self_rolled")
        prepared.manifest.save(part / "manifest.json")
        base = {name: evaluation.to_json() for name, evaluation in prepared.base.items()}
        write_folder(part / "base", **_BASE, meta={"base": base, "metrics": prepared.metrics}, fill=lambda _: None)


def load_preparation(folder: Path) -> Preparation:
    """Reads what :func:`save_preparation` wrote.

    Raises:
        FolderError, TraceError: a part is damaged or of another version.
    """
    converted, self_rolled = TaskTraceCache(), TaskTraceCache()
    converted.loads(folder / "converted")
    self_rolled.loads(folder / "self_rolled")
    data = read_folder(folder / "base", **_BASE).meta
    base = {name: Evaluation.from_json(counts) for name, counts in data["base"].items()}
    return Preparation(Manifest.load(folder / "manifest.json"), converted, self_rolled, base, data["metrics"])
