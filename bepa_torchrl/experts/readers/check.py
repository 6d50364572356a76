"""Checks folders of logs, run by run, before anything is made of them: ``bepa experts check``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.registry import AUTO, RunReader, find_reader, read_all, task_of
from bepa_torchrl.experts.readers.run import USES, Outcome, Run
from bepa_torchrl.experts.sources import split_source
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from bepa_torchrl.storage.run_folders import training_runs
from osworld_gym.tasks.task import Task


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """One run of a source.

    Args:
        source: as it was given.
        run: the run's folder below the source.
        family: which runner wrote it.
        task: the task that it is a run of.
        steps: their number.
        outcome: how it ended.
        usable: what it serves for, of :data:`~bepa_torchrl.experts.readers.run.USES`.
        problems: sentences about what is missing; why the run is skipped comes first.
        skipped: whether no trace is made of it.
    """

    source: str
    run: str
    family: str
    task: str
    steps: int
    outcome: Outcome
    usable: tuple[str, ...]
    problems: tuple[str, ...]
    skipped: bool

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        names = ("source", "run", "family", "task", "steps", "skipped")
        values = {name: getattr(self, name) for name in names}
        return {**values, "outcome": str(self.outcome), "usable": [*self.usable], "problems": [*self.problems]}


@dataclass(frozen=True, slots=True)
class Checked:
    """All runs of the sources, in their order.

    Args:
        runs: the runs.
        training_runs: folders of `bepa train` among the sources, of which only the expert's traces are logs.
    """

    runs: tuple[CheckedRun, ...]
    training_runs: tuple[str, ...] = ()

    @property
    def totals(self) -> dict[str, Any]:
        """Counts: ``runs``, ``skipped``, by ``outcomes``, by ``usable``, by ``families``."""
        return {
            "runs": len(self.runs),
            "tasks": len({run.task for run in self.runs}),
            "skipped": sum(run.skipped for run in self.runs),
            "outcomes": _counts((str(run.outcome) for run in self.runs), [str(outcome) for outcome in Outcome]),
            "usable": _counts((use for run in self.runs for use in run.usable), USES),
            "families": dict(Counter(run.family for run in self.runs)),
        }

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        runs = [run.to_json() for run in self.runs]
        return {"runs": runs, "totals": self.totals, "training_runs": [*self.training_runs]}

    def lines(self) -> Iterator[str]:
        """The report: a line per run under its source, the totals, and the reasons why runs were skipped."""
        heads = ("family", "task", "steps", "outcome", "usable for")
        rows = [(r.family, r.task, str(r.steps), str(r.outcome), ", ".join(r.usable) or "-") for r in self.runs]
        names = ["run", *(run.run for run in self.runs)]
        repeated = len({run.task for run in self.runs}) < len(self.runs)  # then the folder tells them apart
        table = [(*row, name) if repeated else row for row, name in zip([heads, *rows], names, strict=True)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row, problems in zip(table, ["problems", *map(_problems, self.runs)], strict=True):
            yield _row(row, widths, problems)
        totals = self.totals
        yield ""
        yield f"{totals['runs']} runs of {totals['tasks']} tasks: {_listed(totals['outcomes'])}"
        yield f"usable for {_listed(totals['usable'])}"
        reasons = Counter(run.problems[0] for run in self.runs if run.skipped)
        for reason, count in reasons.most_common():
            yield f"skipped {count}: {reason}"
        for folder in self.training_runs:
            yield f"{folder} is a training run: its caches, checkpoints and episodes are no logs, and are left out"


def check_sources(sources: Sequence[str], tasks: Iterable[Task] | None = None) -> Checked:
    """Checks all runs of the sources; screenshots are checked by their headers and sizes, not decoded.

    Args:
        sources: as in ``expert.logs``: ``NAME:FOLDER``, or FOLDER, which is ``auto:FOLDER`` here.
        tasks: the tasks of a suite; runs of other tasks have that as a problem and are skipped. None: any task. A
            reader that is a plain function requires them.

    Raises:
        TraceError: a source does not exist, or no run is in any of them.
    """
    known = None if tasks is None else {task.id: task for task in tasks}
    runs: list[CheckedRun] = []
    trained: list[Path] = []  # training runs in which, or in a part of which, the sources are
    whole: list[Path] = []
    for source in sources:
        name, folder = split_source(source)
        runs += _check(source, name or AUTO, folder, known)
        trained += (found := training_runs(folder))
        whole += [run for run in found if run.is_relative_to(folder)]
    if not runs and trained:
        raise TraceError(
            f"{', '.join(sources)}: no run of an expert found, but the training run {trained[0]}; its expert's traces "
            f"are in {trained[0] / 'prepared' / 'experts'}, and `bepa status {trained[0]}` shows the run itself"
        )
    if not runs and all(_is_function(source) for source in sources):
        count = len(known or ())
        raise TraceError(f"{', '.join(sources)}: the reader returned no trace of any of the {count} tasks of the suite")
    if not runs:
        raise TraceError(
            f"{', '.join(sources)}: no run found; expected folders <task id>/traj.jsonl of OSWorld's runners, "
            "trajectories of AgentNet (*.jsonl) or ATIF (trajectory.json), or traces of `bepa record`"
        )
    return Checked(tuple(runs), tuple(str(run) for run in dict.fromkeys(whole)))


def _is_function(source: str) -> bool:
    return not isinstance(find_reader(split_source(source)[0] or AUTO), RunReader)


def _check(source: str, name: str, folder: Path, known: dict[str, Task] | None) -> list[CheckedRun]:
    reader = find_reader(name)
    if isinstance(reader, RunReader):
        return [_checked(source, run, known) for run in reader.scan(folder)]
    if known is None:
        raise TraceError(f"{source!r}: the reader {name!r} reads runs of given tasks; name their suite with --suite")
    return [_checked_trace(source, trace, known) for trace in read_all(name, folder, known.values())]


def _checked(source: str, run: Run, known: dict[str, Task] | None) -> CheckedRun:
    task = run.task_id if known is None else task_of(run, known)
    foreign = "" if known is None or task in known else "the task is not in the suite"
    skipped = run.skipped or foreign
    problems = ([skipped] if skipped else []) + list(run.problems)
    usable = () if skipped else run.usable
    steps = len(run.steps)
    return CheckedRun(
        source, run.run, run.family, task, steps, run.outcome, usable, tuple(problems), skipped=bool(skipped)
    )


def _checked_trace(source: str, trace: ExpertTrace, known: dict[str, Task]) -> CheckedRun:
    """The result of a reader of traces, which has no runs; its pictures are in memory already."""
    outcome = Outcome.success if trace.success else Outcome.failure
    here = Path()
    run = Run(
        family=trace.expert,
        task_id=trace.task_id,
        run=trace.run,
        outcome=outcome,
        steps=trace.steps,
        inexact=trace.inexact,
        pictures=tuple(here if png else None for png in trace.screenshots),
        final=here if trace.final_screenshot else None,
        problems=tuple(f"step {index + 1}: {reason}" for index, reason in trace.inexact),
    )
    return _checked(source, run, known)


def _counts(entries: Iterable[str], names: Sequence[str]) -> dict[str, int]:
    counts = Counter(entries)
    return {name: counts[name] for name in names}


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _row(cells: Sequence[str], widths: Sequence[int], problems: str) -> str:
    return "  ".join([*(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), problems]).rstrip()


def _problems(run: CheckedRun) -> str:
    """The first two problems, and how many more there are."""
    more = f"; {len(run.problems) - 2} more" if len(run.problems) > 2 else ""
    return "; ".join(run.problems[:2]) + more
