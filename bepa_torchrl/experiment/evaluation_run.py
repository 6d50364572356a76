"""An evaluation that survives kills: every episode is appended to a folder, and none is played twice.

settings.yaml    what the evaluation is of; it goes on with the same settings only
episodes.jsonl   a line per finished episode, as a run's record has them, with its outcome
record.json      the record's version, and how its responses are read
images/          the screenshots, by hash
results.jsonl    the outcomes of all tasks and passes, at the end
osworld/         the same in the layout of OSWorld's runner, if it is asked for, at the end
facts.json       how they were measured, at the end
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bepa_torchrl.evaluation.outcomes import NOT_JUDGED, Outcome, Result, is_feasible, write_outcomes
from bepa_torchrl.evaluation.success_rate import evaluation_job
from bepa_torchrl.experiment.config import settings_to_yaml
from bepa_torchrl.experiment.evaluated_policy import EvaluatedPolicy, HostedModel, evaluated_policy
from bepa_torchrl.experiment.evaluation_folder import claim
from bepa_torchrl.experiment.factory import make_env
from bepa_torchrl.experiment.machine_checks import MachineCheck, play_check, without_oracle
from bepa_torchrl.experiment.osworld_layout import executed, write_layout
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.tasks import Tasks, list_facts, not_executable
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.rollout.stages import StageProgress
from bepa_torchrl.storage.json_lines import json_line, read_lines
from bepa_torchrl.storage.lock import locked
from osworld_gym.action_text.registry import action_text
from osworld_gym.atomic import write_text
from osworld_gym.desktops.identity import desktop_identity
from osworld_gym.tasks.evaluation.identity import evaluators_identity
from osworld_gym.tasks.evaluation.judging import Judge
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

EPISODES = "episodes.jsonl"
_PACKAGES = ("osworld-gym", "torch", "transformers", "torchrl")


@dataclass(frozen=True, slots=True)
class Session:
    """A process that plays: seconds since the epoch at its start, and since then by a clock that nobody sets."""

    start: float = field(default_factory=time.time)
    _since: float = field(default_factory=time.monotonic)

    def now(self) -> float:
        """Seconds since the epoch, if the system's clock was right at the start."""
        return self.start + time.monotonic() - self._since


def play_evaluation(
    settings: Settings,
    tasks: Tasks,
    folder: Path,
    *,
    name: str,
    passes: int,
    temperature: float,
    progress: StageProgress,
    check: MachineCheck | None = None,
    hosted: HostedModel | None = None,
    osworld_layout: bool = False,
    machine_hash: str | None = None,
    judge: Judge | None = None,
    to_judge: Callable[[str], bool] = lambda _: False,
) -> tuple[list[Outcome], dict[str, Any]]:
    """Plays every task ``passes`` times, goes on where an earlier process was killed, and writes the folder.

    The settings must not leave out tasks that cannot run here (``make_tasks`` with ``every``): these are
    outcomes without a result. An episode that the infrastructure lost is played again by the next call.

    Args:
        settings: the settings of the policy, the desktops and the retries.
        tasks: all tasks of the edition.
        folder: the folder of the evaluation.
        name: the name of the suite.
        passes: episodes per task.
        temperature: the temperature of the sampling; 0 is greedy.
        progress: shows how far it is.
        check: plays instead of the policy.
        hosted: plays instead of the settings' checkpoint.
        osworld_layout: whether the episodes are written in the layout of OSWorld's runner, too.
        machine_hash: identity of the desktops for the facts; None: found out, where it can be.
        judge: gets the episodes of tasks that a judge scores; None: that of the settings.
        to_judge: whether what is needed to judge a task's episode later is there; otherwise it is played again.

    Raises:
        ConfigError: the folder has an evaluation with other settings.
        EndpointError: the endpoint gives no answer; what was played is kept.
        OSError: the folder cannot be written; what was played is kept.
    """
    every = [*tasks.train, *tasks.held_out]
    against = not_executable(settings, every) | (without_oracle(every) if check is MachineCheck.oracle else {})
    player = "" if check is None else f", played by {check}"
    identity = settings_to_yaml(settings) + f"# suite {name}, {passes} passes, temperature {temperature:g}{player}\n"
    identity += "" if hosted is None else hosted.identity
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        claim(folder, identity)
        record = RunRecord(folder, images=settings.record.images)
        known = _played(folder, to_judge)
        wanted = [(attempt, number) for attempt in range(passes) for number in range(len(every))]
        jobs = [
            evaluation_job(every[number], settings.eval.seed, number, attempt)
            for attempt, number in wanted
            if every[number].id not in against and (every[number].id, attempt) not in known
        ]
        progress.begin(name, len(jobs) + len(known), len(known))
        session = Session()

        def finished(result: EpisodeResult, code: Sequence[str] = (), lost: str | None = None) -> None:
            outcome = outcome_of(result, lost)
            more = {"outcome": asdict(outcome), "executed": [*code], "session": session.start, "ended": session.now()}
            record.played(result, more)
            known[outcome.task, outcome.attempt] = outcome
            progress.advance()

        if jobs and check is not None:
            play_check(settings, jobs, check, finished)
        elif jobs:
            _play_policy(settings, tasks, jobs, temperature, hosted, record, finished, judge)
        outcomes = [_known_or_not(every[number], attempt, known, against) for attempt, number in wanted]
        facts = _facts(settings, tasks, name=name, temperature=temperature) | _facts_of_player(check, hosted)
        facts["machine_hash"] = machine_hash or desktop_identity(settings.env.provider, settings.env.options)
        facts["wall_seconds"] = round(_wall_seconds(folder), 1)
        write_outcomes(folder, outcomes, facts)
        if osworld_layout:
            write_layout(folder, folder / EPISODES, outcomes)
    return outcomes, facts


def _play_policy(
    settings: Settings,
    tasks: Tasks,
    jobs: Sequence[EpisodeJob],
    temperature: float,
    hosted: HostedModel | None,
    record: RunRecord,
    finished: Callable[[EpisodeResult, Sequence[str], str | None], None],
    judge: Judge | None,
) -> None:
    """Plays the jobs. ``finished`` gets each result, its steps' code, and why it does not count."""
    text = action_text(settings.policy.action_text)

    def ended(policy: EvaluatedPolicy, result: EpisodeResult) -> None:
        finished(result, executed(result, text, policy.scaling), policy.refusal(result.job.key))

    with (
        evaluated_policy(settings, hosted) as policy,
        closing(make_env(settings, policy.scaling, tasks.suite, judge=judge)) as env,
    ):
        record.describe(settings.policy.action_text, policy.scaling)
        run_episodes(
            policy.sampler,
            env.vector,
            jobs,
            temperature=temperature,
            retries=settings.collect.retries,
            on_result=partial(ended, policy),
            keep_rows=False,
        )


def outcome_of(result: EpisodeResult, lost: str | None = None) -> Outcome:
    """The outcome of an episode; its pass is the job's slot. ``lost``: why it has no result, whatever its verdict."""
    task, verdict = result.job.task, result.verdict
    if lost is not None:
        kind, score, reason = Result.no_result, None, f"refused: {lost}"
    elif verdict is None and result.stop is not StopReason.env_error:
        kind, score, reason = Result.no_result, None, NOT_JUDGED
    elif verdict is None:
        kind, score = Result.no_result, None
        reason = "infrastructure" if result.failure is None else f"infrastructure: {result.failure.value}"
    else:
        kind, score = (Result.success if verdict.success else Result.failure), verdict.score
        reason = verdict.problem
    return Outcome(
        task.id,
        task.domain,
        result.job.slot,
        kind,
        score,
        feasible=is_feasible(task),
        stop=result.stop.value,
        reason=reason,
        retried=result.retries,
        steps=result.steps,
        seconds=result.seconds,
    )


def _known_or_not(
    task: Task, attempt: int, known: Mapping[tuple[str, int], Outcome], against: Mapping[str, str]
) -> Outcome:
    outcome = known.get((task.id, attempt))
    if outcome is not None:
        return outcome
    reason = f"not executable: {against[task.id]}" if task.id in against else "not played"
    return Outcome(task.id, task.domain, attempt, Result.no_result, None, feasible=is_feasible(task), reason=reason)


def _played(folder: Path, to_judge: Callable[[str], bool]) -> dict[tuple[str, int], Outcome]:
    """The episodes of earlier processes that have a result, or can be judged; the others leave the record."""
    path = folder / EPISODES
    if not path.exists():
        return {}

    def over(outcome: Mapping[str, Any]) -> bool:
        played = outcome["result"] != Result.no_result.value
        return played or (outcome["reason"] == NOT_JUDGED and to_judge(outcome["task"]))

    kept = [line for line in read_lines(path) if over(line["outcome"])]
    write_text(path, "".join(map(json_line, kept)))  # also without a line that was torn by a kill
    outcomes = (Outcome(**{**line["outcome"], "result": Result(line["outcome"]["result"])}) for line in kept)
    return {(outcome.task, outcome.attempt): outcome for outcome in outcomes}


def _wall_seconds(folder: Path) -> float:
    """Seconds of all processes that have played, each from its start to its last episode."""
    path = folder / EPISODES
    ends: dict[float, float] = {}
    for line in read_lines(path) if path.exists() else ():
        ends[line["session"]] = max(ends.get(line["session"], 0.0), line["ended"])
    return sum(end - start for start, end in ends.items())


def _facts(settings: Settings, tasks: Tasks, *, name: str, temperature: float) -> dict[str, Any]:
    """How an evaluation is made: what it takes to repeat it, and to compare it with another."""
    policy, env = settings.policy, settings.env
    every: Sequence[Task] = [*tasks.train, *tasks.held_out]
    return {
        "suite": name,
        **list_facts(settings, tasks),
        "edition": tasks.suite.fingerprint(every) | {"hashes": {task.id: task.content_hash for task in every}},
        "digest": tasks.suite.digest,
        "policy": policy.checkpoint,
        "action_text": policy.action_text,
        "steps_budget": env.max_steps,
        "temperature": temperature,
        "max_new_tokens": policy.max_new_tokens,
        "seed": settings.eval.seed,
        "provider": env.provider,
        "machine": dict(env.options),
        "desktops": env.desktops,
        "evaluators": evaluators_identity(every, env.evaluators),
        "versions": dict(_versions()),
    }


def _facts_of_player(check: MachineCheck | None, hosted: HostedModel | None) -> dict[str, Any]:
    """The facts that differ if something else than the settings' checkpoint plays."""
    if check is not None:
        of_policies = ("action_text", "steps_budget", "temperature", "max_new_tokens")
        return dict.fromkeys(of_policies) | {"policy": check.value, "desktops": 1}
    return {} if hosted is None else hosted.facts


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
