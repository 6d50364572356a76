"""Episodes that check a machine instead of a policy: each task's oracle, which must score 1, and doing nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from time import perf_counter

from bepa_torchrl.evaluation.outcomes import Outcome, Result
from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from osworld_gym.desktops.base import Desktop
from osworld_gym.episode import Episode, EpisodeOptions, failed
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.factory import desktop_factory
from osworld_gym.tasks.checks import MAX_ORACLE_STEPS
from osworld_gym.tasks.evaluation.score import Evaluators
from osworld_gym.tasks.oracles.base import play_oracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.suites.osworld.solutions import oracle_of, play_official
from osworld_gym.tasks.task import Task
from osworld_gym.types import StepResult, StopReason


class MachineCheck(StrEnum):
    """What plays instead of a policy."""

    oracle = "oracle"  #: the task's oracle; each of its episodes must succeed
    nothing = "nothing"  #: ends at once; no episode may succeed


def without_oracle(tasks: Sequence[Task]) -> dict[str, str]:
    """The tasks that :attr:`MachineCheck.oracle` cannot play, and why."""
    return {task.id: "the task has no oracle" for task in tasks if task.oracle is None and oracle_of(task) is None}


def unexpected(check: MachineCheck, outcomes: Sequence[Outcome]) -> list[str]:
    """The tasks with an episode that has another result than the check expects; those without a result are no part."""
    wanted = Result.success if check is MachineCheck.oracle else Result.failure
    return list(dict.fromkeys(each.task for each in outcomes if each.result not in (wanted, Result.no_result)))


def play_check(
    settings: Settings, jobs: Sequence[EpisodeJob], check: MachineCheck, on_result: Callable[[EpisodeResult], None]
) -> None:
    """Plays each job on one desktop, one after the other. A failed desktop is replaced, and its episode played again.

    Args:
        settings: the settings of the desktops, the evaluators and the retries.
        jobs: the episodes.
        check: what plays.
        on_result: is called with each result, which has no rows.

    Raises:
        DesktopError: no desktop can be made.
    """
    make, options = _desktops(settings)
    desktop: Desktop | None = None
    try:
        for job in jobs:
            retried: list[FailureReason] = []
            while True:
                desktop = desktop or make()
                started = perf_counter()
                result, steps = _play(Episode(desktop, options), job, check)
                seconds = round(perf_counter() - started, 3)
                if result.failure is None:
                    break
                desktop.close()
                desktop = None
                if len(retried) == settings.collect.retries:
                    break
                retried.append(result.failure)
            stop = result.stop or StopReason.env_error
            on_result(EpisodeResult(job, None, stop, result.verdict, result.failure, (*retried,), steps, seconds))
    finally:
        if desktop is not None:
            desktop.close()


def _desktops(settings: Settings) -> tuple[Callable[[], Desktop], EpisodeOptions]:
    env = settings.env
    options = EpisodeOptions(official_timing=env.official_timing, evaluators=Evaluators(env.evaluators))
    return desktop_factory(env.provider, env.options), options


def _play(episode: Episode, job: EpisodeJob, check: MachineCheck) -> tuple[StepResult, int]:
    """The last result of an episode, and its steps."""
    first = episode.begin(job.task, job.env_seed)
    if first.stop is not None or check is MachineCheck.nothing:
        return (first if first.stop is not None else episode.end(StopReason.finished)), 0
    try:
        steps, stop = _solve(episode.desktop, job.task)
    except DesktopError as error:
        return failed(first.screenshot, error), 0
    return episode.end(stop), steps


def _solve(desktop: Desktop, task: Task) -> tuple[int, StopReason]:
    """Lets the task's oracle act; returns its steps (0 of an official task, whose oracle takes none) and stop."""
    official = oracle_of(task) if task.oracle is None else None
    if official is None:
        return play_oracle(desktop, make_oracle(task), max_steps=MAX_ORACLE_STEPS)
    play_official(official, task, desktop)
    return 0, official.stop
