"""The expert traces of a run: read from logs, or recorded from the tasks' oracles, on several desktops in parallel."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from bepa_torchrl.data.seeding import Stream, derive_seed
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experts import ExpertTrace, TraceError, load_trace, record_expert, save_trace, successful_traces
from bepa_torchrl.experts.trace import trace_path
from bepa_torchrl.rollout.stages import Stages
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.errors import DesktopError
from osworld_gym.tasks.task import Task

_log = logging.getLogger(__name__)


def expert_traces(settings: Settings, tasks: Sequence[Task], stages: Stages | None = None) -> list[ExpertTrace]:
    """Successful traces of these tasks, from ``expert.logs`` or else recorded from the tasks' oracles.

    Args:
        stages: keeps recorded runs, and knows those of an earlier process; None: all are recorded.

    Raises:
        TraceError: the logs cannot be read, or contain no success.
    """
    if settings.expert.logs:
        return successful_traces(list(settings.expert.logs), tasks)
    return record_experts(settings, tasks, stages)


def record_experts(settings: Settings, tasks: Sequence[Task], stages: Stages | None = None) -> list[ExpertTrace]:
    """Records one successful run of each task's oracle, in parallel; unsolved tasks are left out.

    The desktops are separate from the run's, ``env.desktops`` of them, or a single one within this process. A run that
    failed because of the infrastructure is repeated once.
    """
    env, stages = settings.env, stages or Stages()
    numbered = [(number, task) for number, task in enumerate(tasks) if task.oracle is not None]
    kept = {number: trace for number, task in numbered if (trace := _kept(settings, stages, number, task)) is not None}
    stages.progress.begin("expert runs", len(numbered), len(kept))
    missing = [(number, task) for number, task in numbered if number not in kept]
    idle: SimpleQueue[Desktop] = SimpleQueue()

    def record(numbered_task: tuple[int, Task]) -> ExpertTrace | None:
        desktop = idle.get()  # there is one for each thread
        try:
            trace = _record_expert(settings, desktop, *numbered_task)
        finally:
            idle.put(desktop)
        if trace is not None:
            _keep(settings, stages, *numbered_task, trace)
        stages.progress.advance()
        return trace

    with ExitStack() as opened:
        count = 0
        if missing:
            first = opened.enter_context(make_desktop(env.provider, **env.options))
            count = min(env.desktops, len(missing)) if first.blocking else 1
            idle.put(first)
        for _ in range(count - 1):
            idle.put(opened.enter_context(make_desktop(env.provider, **env.options)))
        with ThreadPoolExecutor(max(1, count), thread_name_prefix="expert") as threads:
            recorded = dict(zip((number for number, _ in missing), threads.map(record, missing), strict=True))
    traces = kept | {number: trace for number, trace in recorded.items() if trace is not None}
    return [traces[number] for number, _ in numbered if number in traces and traces[number].success]


def _record_expert(settings: Settings, desktop: Desktop, number: int, task: Task) -> ExpertTrace | None:
    """A task's trace, successful or not; None if the desktop failed twice."""
    for attempt in range(2):
        try:
            seed = derive_seed(settings.seed, Stream.EXPERT, number, attempt)
            return record_expert(desktop, task, seed, style=settings.expert.oracle_style)
        except DesktopError as error:
            _log.warning("expert on task %s: %s", task.id, error)
    return None


def _kept(settings: Settings, stages: Stages, number: int, task: Task) -> ExpertTrace | None:
    """The trace that an earlier process has recorded, if any."""
    unit = None if stages.ledger is None else stages.ledger.find(*_identity(settings, number, task))
    if stages.ledger is None or unit is None:
        return None
    try:
        return load_trace(trace_path(stages.ledger.folder, str(unit[0]["expert"]), task.id))
    except TraceError as error:
        _log.warning("recorded again: %s", error)
        return None


def _keep(settings: Settings, stages: Stages, number: int, task: Task, trace: ExpertTrace) -> None:
    if stages.ledger is not None:
        save_trace(trace, stages.ledger.folder)
        stages.ledger.add(*_identity(settings, number, task), data={"expert": trace.expert})


def _identity(settings: Settings, number: int, task: Task) -> tuple[object, ...]:
    return "expert", settings.seed, number, task.id, task.content_hash, settings.expert.oracle_style
