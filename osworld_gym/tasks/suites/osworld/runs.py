"""Runs official tasks twice on a real desktop, doing nothing and with an oracle: the scores must be 0 and 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, TaskError
from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators
from osworld_gym.tasks.evaluation.score import Backend, Evaluators
from osworld_gym.tasks.evaluation.verify import read_evaluator, verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.suites.osworld.oracles import ORACLES, OfficialOracle
from osworld_gym.tasks.suites.osworld.requirements import files_of
from osworld_gym.tasks.suites.osworld.solutions import play_official
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action


@dataclass(frozen=True, slots=True)
class Outcome:
    """One task's scores (None: could not be scored, see ``error``), and the seconds of both runs together."""

    task: Task
    nothing: float | None
    oracle: float | None
    evaluator: str
    error: str
    seconds: float

    @property
    def sound(self) -> bool:
        return self.nothing == 0.0 and self.oracle == 1.0

    def line(self) -> str:
        """One row of the table: id, domain, both scores, which evaluators, seconds, error."""
        scores = ["–" if score is None else f"{score:g}" for score in (self.nothing, self.oracle)]
        error = " ".join(self.error.split())
        run = f"{self.evaluator:10} {self.seconds:6.1f} s  {error}"
        return f"{self.task.id[:8]} {self.task.domain:20} {scores[0]:>7} {scores[1]:>6}  {run}".rstrip()


HEAD = f"{'task':8} {'domain':20} {'nothing':>7} {'oracle':>6}  {'evaluator':10} {'both runs':>8}"


def with_oracle(tasks: Sequence[Task]) -> list[tuple[Task, OfficialOracle]]:
    """The supported tasks that have a written oracle and whose files are all in the cache, each with its oracle."""
    files = FileCache()
    written = [(task, ORACLES[task.id[:8]]) for task in tasks if task.id[:8] in ORACLES and not task.unsupported]
    return [pair for pair in written if all(files.find(file) is not None for file in files_of(pair[0]))]


def run_all(desktop: Desktop, tasks: Sequence[Task], pool: OfficialEvaluators, seed: int = 0) -> Iterator[Outcome]:
    """Yields the outcome of each task that has an oracle. A failing desktop affects only its task."""
    files = FileCache()
    for task, oracle in with_oracle(tasks):
        start = perf_counter()
        evaluators, whose = _evaluators(task, pool)
        nothing, error = _run(desktop, task, OfficialOracle(), evaluators, files, seed)
        solved, second = _run(desktop, task, oracle, evaluators, files, seed)
        yield Outcome(task, nothing, solved, whose, error or second, perf_counter() - start)


def _evaluators(task: Task, pool: OfficialEvaluators) -> tuple[Evaluators, str]:
    """OSWorld's evaluators if they have the task's metrics, else ours (for newer tasks); with a label."""
    checks = read_evaluator(task)[1]
    metrics, _ = pool.known()
    if not checks:
        return Evaluators(official=pool), "infeasible"
    if all(check.func in metrics for check in checks):
        return Evaluators(Backend.official, official=pool), "official"
    return Evaluators(Backend.ours), "ours"


def _run(
    desktop: Desktop, task: Task, oracle: OfficialOracle, evaluators: Evaluators, files: FileCache, seed: int
) -> tuple[float | None, str]:
    try:
        desktop.reset(seed)
        prepare(task, desktop, files, seed=seed)
        desktop.perform([Action("wait")])
        play_official(oracle, task, desktop, files)
        return verify(task, desktop, stop=oracle.stop, evaluators=evaluators, files=files).score, ""
    except (DesktopError, TaskError) as error:
        return None, str(error)
