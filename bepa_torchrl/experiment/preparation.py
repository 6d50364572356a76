"""The preparation shared by all methods of a run: expert traces, D_conv, LEVEL-1's D_self, the manifest."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tensordict import TensorDictBase

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data.provenance import Provenance, mark, provenance_of
from bepa_torchrl.evaluation.success_rate import Evaluation, evaluate
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.tasks import Tasks, run_seed
from bepa_torchrl.experts import (
    ExpertTrace,
    Manifest,
    SelfRolloutSet,
    TraceError,
    check_disjoint,
    convert_trace,
    plan_from_trace,
    save_traces,
    self_roll,
    task_hashes,
    trace_rows,
)
from bepa_torchrl.experts.plans import PLANS, Phi, read_plans
from bepa_torchrl.experts.self_rollout import Attempt
from bepa_torchrl.experts.splitting import read_pass_k
from bepa_torchrl.methods import method_named
from bepa_torchrl.policies.base import ModelSampler
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.prefix import check_replayable
from bepa_torchrl.rollout.stages import Stages
from bepa_torchrl.storage import FolderError
from osworld_gym.atomic import new_folder, write_text
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

_CHECKSUMS = "checksums.json"  #: of the JSON files; caches and images have their own
_RESTORE = "restore the folder from a copy, or remove it: resume=true then prepares again"
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


def prepare(
    settings: Settings,
    policy: ModelSampler,
    vector: DesktopVector,
    tasks: Tasks,
    traces: Sequence[ExpertTrace],
    *,
    note: Note,
    record: RunRecord | None = None,
    stages: Stages | None = None,
) -> Preparation:
    """Converts the traces, runs LEVEL-1, and evaluates the base policy.

    D_self, or D_conv, is that of ``cache.seed`` if it is set.

    Args:
        traces: expert traces of the training tasks.
        note: is called with a line about each stage.
        record: where the episodes of the base policy's evaluation are kept; None: nowhere.
        stages: keeps what is finished, and knows what an earlier process has finished; None: everything is done.
    """
    stages = stages or Stages()
    metrics = {"expert_traces": float(len(traces))}
    converted, self_rolled, counts = _trace_sets(settings, policy, vector, tasks.train, traces, stages, note)
    metrics |= counts
    played = settings.expert.pass_k_file is None
    note(f"base policy, pass@{settings.expert.pass_k}{'' if played else f' of {settings.expert.pass_k_file}'}")
    base = measure_base(settings, policy, vector, tasks, record=record, stages=stages)
    passed = base.pop("pass_k")
    manifest = Manifest(
        hashes=task_hashes([*tasks.train, *tasks.held_out]),
        train=tuple(task.id for task in tasks.train),
        held_out=tuple(task.id for task in tasks.held_out),
        expert=tuple(dict.fromkeys(trace.task_id for trace in traces)),
        converted=tuple(converted.task_ids()),
        self_rolled=tuple(self_rolled.task_ids()),
        base_solved=tuple(task for task, (wins, _) in passed.counts.items() if wins),
        provenance={"converted": _provenance(converted), "self_rolled": _provenance(self_rolled)},
    )
    for cache in (converted, self_rolled):
        check_disjoint(cache.task_ids(), manifest.held_out)
    metrics |= {f"failed_{reason.value}": float(count) for reason, count in (vector.failures + stages.failures).items()}
    metrics["seconds"] = stages.seconds
    return Preparation(manifest, converted, self_rolled, base, metrics)


def _trace_sets(
    settings: Settings,
    policy: ModelSampler,
    vector: DesktopVector,
    tasks: Sequence[Task],
    traces: Sequence[ExpertTrace],
    stages: Stages,
    note: Note,
) -> tuple[TaskTraceCache, TaskTraceCache, dict[str, float]]:
    """D_conv, D_self and their counts; the set that ``cache.seed`` has is read from there.

    Raises:
        ValueError: a method replays traces, and those of ``cache.seed`` cannot be replayed.
    """
    seed = run_seed(settings)
    seeded = TaskTraceCache() if seed is None else seed.load(policy, tasks)
    if seed is not None:
        others = len(seed.tasks) - len(seeded)
        note(f"{seed.where}: {len(seeded)} {seed.kind} traces of training tasks, {others} of others")
        if seed.kind == "self_rolled" and any(
            method_named(name).prefix for name in (settings.algo.name, *settings.compare)
        ):
            check_replayable(seeded, seed.where)
    if seed is not None and seed.kind == "converted":
        converted = seeded
    else:
        converted = convert_all(policy, traces, settings.policy.action_text, stages)
    rolled = SelfRolloutSet({}, 0, 0, 0, 0, 0.0)
    if seed is not None and seed.kind == "self_rolled":
        self_rolled = seeded
    else:
        note(f"LEVEL-1: the base policy follows {len(traces)} plans")
        self_rolled, rolled = self_roll_all(settings, policy, vector, tasks, traces, stages)
        note(f"LEVEL-1: {len(self_rolled)} of {len(traces)} succeeded")
    counts = {"converted": len(converted), "self_rolled": len(self_rolled)}
    counts |= {"self_roll_episodes": rolled.episodes, "self_roll_failures": rolled.failures}
    return converted, self_rolled, {name: float(n) for name, n in counts.items()} | {"plan_leak_rate": rolled.leak_rate}


def phi(settings: Settings, prepared: Path | None = None) -> Phi:
    """φ of a run: the plans of ``expert.plans``, or by rule.

    Args:
        settings: the settings of the run.
        prepared: folder of its preparation, which has a copy of the file of plans; None: not prepared yet.

    Raises:
        TraceError: the file of plans cannot be used.
    """
    if settings.expert.plans is not None:
        return read_plans(Path(settings.expert.plans).expanduser() if prepared is None else prepared / PLANS)
    return lambda trace: plan_from_trace(trace, source=settings.expert.plan_source)


def _provenance(cache: TaskTraceCache) -> dict[str, dict[str, Any]]:
    """Task id → where its trace is from."""
    origins = {task_id: provenance_of(cache.get_trace(task_id)[0]) for task_id in cache.task_ids()}
    return {task_id: each.to_json() for task_id, each in origins.items() if each is not None}


def convert_all(
    policy: ModelSampler, traces: Sequence[ExpertTrace], action_text: str = "uitars", stages: Stages | None = None
) -> TaskTraceCache:
    """D_conv as a cache: the traces in the policy's format, without plan.

    Per task it contains the first trace that fits the policy's context length.
    """
    stages, cache = stages or Stages(), TaskTraceCache()
    stages.progress.begin("converted traces", len(traces), 0)
    for trace in traces:
        if trace.task_id not in cache.task_ids():
            try:
                rows = stages.rows(partial(_converted, policy, trace, action_text), "converted", trace.content_hash)
                cache.put(trace.task_id, rows)
            except TraceError as error:
                _log.warning("left out of D_conv: %s", error)
        stages.progress.advance()
    return cache


def _converted(policy: ModelSampler, trace: ExpertTrace, action_text: str) -> TensorDictBase:
    pairs = convert_trace(trace, policy.renderer.image_scaling, action_text=action_text).pairs
    rows = trace_rows(policy, trace.task_id, trace.instruction, pairs)
    return mark(rows, Provenance(trace.expert, trace.origin, trace=trace.content_hash))


def self_roll_all(
    settings: Settings,
    policy: ModelSampler,
    vector: DesktopVector,
    tasks: Sequence[Task],
    traces: Sequence[ExpertTrace],
    stages: Stages | None = None,
    on_attempt: Callable[[Attempt], None] = lambda _: None,
) -> tuple[TaskTraceCache, SelfRolloutSet]:
    """LEVEL-1: D_self as a cache, and the counts of the self-rollouts.

    Args:
        stages: as of :func:`prepare`.
        on_attempt: is called with each self-rollout.
    """
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
        plan=phi(settings),
        handover=settings.expert.handover,
        on_attempt=on_attempt,
        play=(stages or Stages()).episodes("LEVEL-1", rows=lambda result: result.success),
    )
    cache = TaskTraceCache()
    for task_id, entry in rolled.entries.items():
        cache.put(task_id, entry.rows)
    return cache, rolled


def measure_base(
    settings: Settings,
    policy: ModelSampler,
    vector: DesktopVector,
    tasks: Tasks,
    *,
    record: RunRecord | None = None,
    stages: Stages | None = None,
) -> dict[str, Evaluation]:
    """Evaluates the base policy: ``pass_k`` on the training tasks, ``greedy`` and ``sampled`` on all tasks.

    With ``expert.pass_k_file`` nothing is played: its attempts, at temperature 1, are ``pass_k`` and ``sampled``.
    """
    every, stages = [*tasks.train, *tasks.held_out], stages or Stages()
    if settings.expert.pass_k_file is not None:
        _, counts = read_pass_k(Path(settings.expert.pass_k_file).expanduser(), every)
        train = {task.id: counts[task.id] for task in tasks.train}
        return {"pass_k": Evaluation(train), "sampled": Evaluation(counts)}
    out = {"pass_k": pass_k(settings, policy, vector, tasks.train, stages)}
    if settings.eval.final_episodes:
        out |= final_evaluation(settings, policy, vector, every, record=record, stages=stages)
    return out


def pass_k(
    settings: Settings, policy: ModelSampler, vector: DesktopVector, tasks: Sequence[Task], stages: Stages
) -> Evaluation:
    """The base policy's ``expert.pass_k`` episodes per task; other ones than those that later evaluate a policy."""
    k, seed, retries = settings.expert.pass_k, settings.eval.seed + 1, settings.collect.retries
    play = stages.episodes(f"pass@{k}")
    return evaluate(policy, vector, tasks, episodes=k, temperature=1.0, seed=seed, retries=retries, play=play)


def final_evaluation(
    settings: Settings,
    policy: ModelSampler,
    vector: DesktopVector,
    tasks: Sequence[Task],
    *,
    record: RunRecord | None = None,
    stages: Stages | None = None,
    keep: Callable[[Mapping[str, Sequence[EpisodeResult]]], None] | None = None,
) -> dict[str, Evaluation]:
    """``greedy`` (one episode per task, with ``eval.greedy``) and ``sampled`` (``eval.final_episodes``), with its seed.

    Args:
        record: keeps the episodes with their screenshots; None: only their counts are kept.
        stages: as of :func:`prepare`.
        keep: is given all episodes with their rows at the end, by mode.
    """
    with_rows = record is not None or keep is not None
    seed, retries, stages = settings.eval.seed, settings.collect.retries, stages or Stages()
    modes = {"greedy": (1, 0.0)} if settings.eval.greedy else {}
    modes |= {"sampled": (settings.eval.final_episodes, 1.0)}
    played: dict[str, Sequence[EpisodeResult]] = {}
    out = {
        mode: evaluate(
            policy, vector, tasks, episodes=episodes, temperature=temperature, seed=seed, retries=retries,
            keep=partial(played.__setitem__, mode) if with_rows else None,
            play=stages.episodes(f"evaluation, {mode}", rows=lambda _: with_rows),
        )
        for mode, (episodes, temperature) in modes.items()
    }  # fmt: skip
    if record is not None:
        record.outcomes(played)
    if keep is not None:
        keep(played)
    return out


def save_preparation(
    prepared: Preparation, traces: Sequence[ExpertTrace], folder: Path, *, plans: Path | None = None
) -> None:
    """Writes the folder atomically, with a copy of the file of plans if there is one."""
    with new_folder(folder) as part:
        save_traces(traces, part / "experts")
        prepared.converted.dumps(part / "converted")
        prepared.self_rolled.dumps(part / "self_rolled")
        prepared.manifest.save(part / "manifest.json")
        base = {name: evaluation.to_json() for name, evaluation in prepared.base.items()}
        write_text(part / "base.json", json.dumps({"base": base, "metrics": prepared.metrics}, indent=1))
        if plans is not None:
            write_text(part / PLANS, plans.read_text(encoding="utf-8"))
        write_text(part / _CHECKSUMS, json.dumps(_checksums(part), indent=1))


def load_preparation(folder: Path) -> Preparation:
    """Reads what :func:`save_preparation` wrote.

    Raises:
        FolderError, TraceError: a part is damaged or of another version.
    """
    if (folder / _CHECKSUMS).exists():  # not in preparations of earlier versions
        _check_files(folder)
    converted, self_rolled = TaskTraceCache(), TaskTraceCache()
    converted.loads(folder / "converted")
    self_rolled.loads(folder / "self_rolled")
    data = json.loads((folder / "base.json").read_text(encoding="utf-8"))
    base = {name: Evaluation.from_json(counts) for name, counts in data["base"].items()}
    return Preparation(Manifest.load(folder / "manifest.json"), converted, self_rolled, base, data["metrics"])


def _checksums(folder: Path) -> dict[str, str]:
    """The sha256 of the JSON files of a preparation, by relative path."""
    paths = [folder / "base.json", folder / "manifest.json", *sorted((folder / "experts" / "traces").rglob("*.json"))]
    paths += [folder / PLANS] if (folder / PLANS).exists() else []
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def _check_files(folder: Path) -> None:
    """Raises FolderError if a file is not as it was written."""
    try:
        expected, actual = json.loads((folder / _CHECKSUMS).read_text(encoding="utf-8")), _checksums(folder)
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder}: a file cannot be read ({error}); {_RESTORE}") from error
    wrong = [name for name in sorted({*expected, *actual}) if expected.get(name) != actual.get(name)]
    if wrong:
        raise FolderError(f"{folder / wrong[0]} is damaged or was changed; {_RESTORE}")
