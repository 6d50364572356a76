r"""LEVEL-1: the base policy acts with the expert's plan in its prompt; its successful episodes are D_self.

Paper, section on self-rolled execution: p = φ(trace), act on ``instruction + "\n\n" + p``, keep R = 1. With several
experts (hybrid), a task's traces are tried in the given order, and the first successful self-rollout is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import Provenance, mark, provenance_of
from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.data.step_rows import mark_untrained, row_list
from bepa_torchrl.experts.leak import plan_leaks
from bepa_torchrl.experts.plan import plan_from_trace, plan_hash
from bepa_torchrl.experts.rows import plan_free_rows
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from bepa_torchrl.policies.base import ModelSampler
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.rollout.stages import RunEpisodes
from osworld_gym.action_text import ACTION_TEXTS
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SelfRollout:
    """One kept self-rollout.

    Args:
        rows: lazy stack ``[S]``, plan-free prompts, sampled token ids, source ``self_rolled``, with their provenance.
        expert: name of the expert whose plan was followed.
        plan: the plan in the policy's prompt.
        leak: share of the thoughts that mention or quote the plan, 0..1.
    """

    rows: TensorDictBase
    expert: str
    plan: str
    leak: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """One self-rollout, kept or not, as a line of ``selfroll.jsonl``.

    Args:
        task: id of the task.
        expert: name of the expert whose plan was followed.
        plan: hash of the plan.
        attempt: 0-based, with this plan.
        steps: responses of the policy.
        score: the verifier's, 0..1; None if the infrastructure failed.
        problem: what the verifier could not read, if anything.
        stop: why the episode ended.
        failure: reason of an infrastructure failure or of a crash (``crashed_desktop``), or None.
        seconds: duration of the episode.
        leak: share of a success's thoughts that mention or quote the plan; None without a success.
        kept: whether it is in D_self.
    """

    task: str
    expert: str
    plan: str
    attempt: int
    steps: int
    score: float | None
    problem: str
    stop: str
    failure: str | None
    seconds: float
    leak: float | None
    kept: bool


@dataclass(frozen=True, slots=True)
class SelfRolloutSet:
    """D_self by task id, with the counts of the collection.

    Args:
        entries: kept self-rollouts.
        episodes: episodes that were played to their end.
        failures: episodes lost to infrastructure failures after all retries; not counted as attempts.
        unplanned: traces without a plan, which were skipped.
        leaking: successes that the leak filter rejected.
        leak_rate: share of leaking thoughts over all successful self-rollouts, rejected ones included; 0 when none.
        attempts: all self-rollouts, in the order of the attempts.
    """

    entries: Mapping[str, SelfRollout]
    episodes: int
    failures: int
    unplanned: int
    leaking: int
    leak_rate: float
    attempts: tuple[Attempt, ...] = ()


def self_roll(
    policy: ModelSampler,
    vector: DesktopVector,
    traces: Iterable[ExpertTrace],
    tasks: Iterable[Task],
    *,
    seed: int = 0,
    tries: int = 1,
    budget: int | None = None,
    temperature: float = 1.0,
    max_leak: float = 1.0,
    plan: Callable[[ExpertTrace], str] = plan_from_trace,
    handover: int = 0,
    play: RunEpisodes = run_episodes,
    on_attempt: Callable[[Attempt], None] = lambda _: None,
) -> SelfRolloutSet:
    """Runs each task with its experts' plans until a success, which is kept. One attempt of every open task at a time.

    Args:
        policy: the base policy.
        vector: desktops; their options hold the step limit and the policy's scaling.
        traces: successful traces of any number of experts, the preferred expert's first; failed ones are skipped.
        tasks: the tasks to run; traces of other tasks are skipped.
        seed: the seed of desktops and sampling; an episode's key is (stream SELF_ROLLOUT, expert index, task number,
            attempt).
        tries: maximum number of attempts per task and expert, the first expert's before the second's.
        budget: episodes of all tasks together, instead of ``tries``: open tasks are tried again, with one expert after
            the other, until it is spent; episodes lost to infrastructure failures count. None: no such limit.
        temperature: sampling temperature.
        max_leak: a success with a larger ``leak`` is rejected; 1.0 keeps all.
        plan: φ, maps a trace to its plan; a trace for which it raises TraceError is skipped.
        handover: steps that the policy acts without the plan before it gets it; 0: the plan is in every prompt. A trace
            keeps all its steps: :func:`after_handover` tells which follow.
        play: plays the episodes of one attempt of all open tasks.
        on_attempt: is called with each self-rollout when those of one attempt of all open tasks are over.

    Raises:
        ValueError: ``tries`` or ``budget`` is below 1, or ``handover`` below 0.
    """
    if handover < 0:
        raise ValueError(f"self_roll: handover must be at least 0, got {handover}")
    if tries < 1:
        raise ValueError(f"self_roll: tries must be at least 1, got {tries}")
    if budget is not None and budget < 1:
        raise ValueError(f"self_roll: budget must be at least 1, or None; got {budget}")
    by_id = {task.id: (number, task) for number, task in enumerate(tasks)}
    queues, unplanned = _queues(traces, by_id, plan)
    entries: dict[str, SelfRollout] = {}
    leaks: list[float] = []
    attempts: list[Attempt] = []
    episodes = failures = leaking = number = 0
    left, text = budget, vector.options.action_text
    while True:
        places = {i: _place(number, len(queues[i]), tries, budget) for i in queues if i not in entries}
        jobs = [_job(by_id[i], queues[i][at[0]][1], seed, at, handover) for i, at in places.items() if at is not None][
            :left
        ]
        if not jobs:
            break
        number, left = number + 1, None if left is None else left - len(jobs)
        for result in play(policy, vector, jobs, temperature=temperature):
            failures += not result.valid
            episodes += result.valid
            turn, attempt = cast(tuple[int, int], places[result.job.task.id])
            trace, followed = queues[result.job.task.id][turn]
            entry = _entry(policy, result, trace, followed, attempt, text)
            kept = entry is not None and entry.leak <= max_leak
            attempts.append(_attempt(result, trace.expert, followed, attempt, entry, kept=kept))
            on_attempt(attempts[-1])
            if entry is None:
                continue
            leaks += _leaks(entry.rows, entry.plan, text)
            leaking += not kept
            if kept:
                entries[result.job.task.id] = entry
    rate = sum(leaks) / len(leaks) if leaks else 0.0
    return SelfRolloutSet(entries, episodes, failures, unplanned, leaking, rate, tuple(attempts))


def after_handover(rows: TensorDictBase) -> Tensor:
    """Which rows ``[S]`` of a self-rolled trace were sampled with the plan in the prompt, bool ``[S]``.

    All True for a trace without hand-over. By default training keeps the rows before the hand-over: the policy sampled
    them with the prompt that they are trained with. :func:`train_after_handover` leaves them out.

    Raises:
        ValueError: a row has no provenance: the trace is no self-rollout.
    """
    mask = []
    for row in row_list(rows):
        provenance = provenance_of(row)
        if provenance is None:
            raise ValueError(f"expected rows of a self-rolled trace, got one without provenance: {row[K.TASK_ID]!r}")
        mask.append(int(cast(Tensor, row.get(K.STEP))) >= provenance.handover)
    return torch.tensor(mask, dtype=torch.bool)


def train_after_handover(traces: TaskTraceCache) -> TaskTraceCache:
    """The same traces, with TRAINED False on the rows before the hand-over: they are in no loss (SGCD, 2606.18890).

    A success that never got the plan is trained on whole.

    Raises:
        ValueError: a trace is no self-rollout.
    """
    marked = TaskTraceCache()
    for task_id in traces.task_ids():
        trace = traces.get_trace(task_id)
        after = after_handover(trace)
        if bool(after.any()):
            mark_untrained(row_list(trace), int((~after).sum()))
        marked.put(task_id, trace)
    return marked


def _attempt(
    result: EpisodeResult, expert: str, plan: str, attempt: int, entry: SelfRollout | None, *, kept: bool
) -> Attempt:
    verdict = result.verdict
    return Attempt(
        task=result.job.task.id,
        expert=expert,
        plan=plan_hash(plan),
        attempt=attempt,
        steps=result.steps,
        score=None if verdict is None else verdict.score,
        problem="" if verdict is None else verdict.problem,
        stop=result.stop.value,
        failure=None if result.failure is None else result.failure.value,
        seconds=result.seconds,
        leak=None if entry is None else entry.leak,
        kept=kept,
    )


def _queues(
    traces: Iterable[ExpertTrace], known: Mapping[str, tuple[int, Task]], plan: Callable[[ExpertTrace], str]
) -> tuple[dict[str, list[tuple[ExpertTrace, str]]], int]:
    """Successful traces of known tasks with their plans, by task id, in order; and how many traces have no plan."""
    queues: dict[str, list[tuple[ExpertTrace, str]]] = {}
    unplanned = 0
    for trace in traces:
        if not trace.success or trace.task_id not in known:
            continue
        try:
            queues.setdefault(trace.task_id, []).append((trace, plan(trace)))
        except TraceError as error:
            _log.warning("no self-rollout: %s", error)
            unplanned += 1
    return queues, unplanned


def _place(number: int, experts: int, tries: int, budget: int | None) -> tuple[int, int] | None:
    """The expert's index and the attempt with it of a task's attempt ``number``; None if it has no more attempts."""
    if budget is not None:
        return number % experts, number // experts
    return (number // tries, number % tries) if number < experts * tries else None


def _job(numbered: tuple[int, Task], plan: str, seed: int, at: tuple[int, int], handover: int) -> EpisodeJob:
    number, task = numbered
    turn, attempt = at
    key = episode_key(seed, Stream.SELF_ROLLOUT, turn, number, attempt)
    return EpisodeJob(task, key, desktop_seed(key), group_id=number, slot=attempt, plan=plan, handover=handover)


def _entry(
    policy: ModelSampler, result: EpisodeResult, trace: ExpertTrace, plan: str, attempt: int, action_text: str
) -> SelfRollout | None:
    if not result.success or result.rows is None:
        return None
    leaks = _leaks(result.rows, plan, action_text)
    provenance = Provenance(
        trace.expert,
        trace.origin,
        plan_hash(plan),
        attempt,
        result.job.handover,
        trace.content_hash,
        result.job.env_seed,
    )
    rows = mark(plan_free_rows(policy, result.rows), provenance)
    return SelfRollout(rows, trace.expert, plan, sum(leaks) / len(leaks))


def _leaks(rows: TensorDictBase, plan: str, action_text: str) -> Sequence[bool]:
    thought_of = ACTION_TEXTS[action_text].thought_of
    return [plan_leaks(thought_of(cast(str, row[K.RESPONSE])), plan) for row in row_list(rows)]
