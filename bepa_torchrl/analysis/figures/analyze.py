"""Draws every figure that the records of some runs have the data for, and says why the others are missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path

from bepa_torchrl.analysis.figures.cases import case_rows, case_size, draw_case, find_cases
from bepa_torchrl.analysis.figures.domains import domain_rows, draw_domains, solved_tasks
from bepa_torchrl.analysis.figures.dynamics import assimilation_rows, draw_assimilation, draw_dynamics, dynamics_rows
from bepa_torchrl.analysis.figures.files import Row, write_drawing, write_table
from bepa_torchrl.analysis.figures.histogram import (
    TraceSets,
    draw_histogram,
    histogram_rows,
    recorded_sets,
    summary_rows,
)
from bepa_torchrl.analysis.figures.runs import MethodOfRun
from bepa_torchrl.analysis.figures.scored import base_policy, scored_sets
from bepa_torchrl.analysis.figures.sensitivity import sensitivity_rows
from bepa_torchrl.analysis.prepared import prepared_folder
from bepa_torchrl.analysis.records import MethodRecord
from bepa_torchrl.evaluation.success_rate import Evaluation
from bepa_torchrl.experiment.preparation import load_preparation
from bepa_torchrl.experts import load_traces
from bepa_torchrl.experts.manifest import Manifest
from osworld_gym.errors import TaskError
from osworld_gym.tasks.suites.registry import load_suite

MODES = ("greedy", "sampled")  #: evaluations that the domain breakdown counts, the preferred one first
_HEIGHT = 3.4  #: of a panel, inches


@dataclass
class Analysis:
    """What was written, and what was not.

    Args:
        files: names of the files.
        missing: sentences about figures that the records have no data for.
    """

    files: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def analyze(
    methods: Sequence[MethodOfRun],
    folder: Path,
    *,
    score: bool = False,
    worker: bool = False,
    cases: int = 3,
    tasks: Collection[str] | None = None,
    split: Path | None = None,
) -> Analysis:
    """Writes tables and drawings into an empty folder.

    Args:
        methods: the methods of one run or several.
        folder: exists.
        score: whether the base policy scores the traces for the histogram; otherwise their log-probs are the record's.
        worker: whether it scores Agent S2's raw traces under its worker's prompts, as in the paper; with ``score``.
        cases: number of case sheets per run.
        tasks: ids of the tasks that the histograms are of, such as D_upd; None: all.
        split: folder of ``bepa experts split``, which says what the expert solved of all tasks: the domain breakdown
            then has the held-out tasks, too. Its expert-only tasks, if it has any, are those of the table of final
            success, also of runs that have no self-rollouts of their own.

    Raises:
        TraceError: ``split`` is no such folder.
    """
    done = Analysis()
    solved = None if split is None else Manifest.load(split / "manifest.json")
    sets_of = partial(_scored, worker=worker) if score else _recorded
    _histograms(methods, folder, done, sets_of, tasks)
    lines = {method.label: method.lines for method in methods}
    _figure(folder, done, "training_dynamics", dynamics_rows(lines), (11, 2 * _HEIGHT), draw_dynamics)
    rows = [
        row for row in assimilation_rows(lines) if row["update_frequency"] is not None or row["expert_only"] is not None
    ]
    size = (5 * max(1, len({row["method"] for row in rows})), _HEIGHT + 0.6)
    _figure(folder, done, "assimilation", rows, size, draw_assimilation)
    _domains(methods, folder, done, solved)
    _sensitivity(methods, folder, done, solved)
    for method in {prepared_folder(method.record).resolve(): method for method in reversed(methods)}.values():
        _cases(method, folder, done, cases)
    return done


def _figure(
    folder: Path,
    done: Analysis,
    name: str,
    rows: Sequence[Row],
    size: tuple[float, float],
    draw: Callable[..., None],
) -> None:
    if not rows:
        done.missing.append(f"{name}: no trained iteration in the records")
        return
    done.files.append(write_table(folder, name, rows))
    done.files += write_drawing(folder, name, size, partial(draw, rows=rows))


def _histograms(
    methods: Sequence[MethodOfRun],
    folder: Path,
    done: Analysis,
    sets_of: Callable[[MethodRecord, Collection[str] | None], TraceSets],
    tasks: Collection[str] | None,
) -> None:
    for method in methods:
        name = _new_name(done, f"token_probabilities-{_safe(method.label)}")
        traces = sets_of(method.record, tasks)
        sets = traces.log_probs
        for origin, reasons in traces.left_out.items():
            why = " and ".join(f"{steps} {reason}" for reason, steps in reasons.items())
            done.missing.append(f"{name}: {sum(reasons.values())} steps of {origin}: {why}")
        if not sets:
            which = "" if tasks is None else f" of these {len(tasks)} tasks"
            done.missing.append(f"{name}: no episode{which} with its tokens; train with record.every >= 1")
            continue
        if len(sets) == 1:
            done.missing.append(f"{name}: one set only ({', '.join(sets)}), since no trace was injected")
        histogram, summary = histogram_rows(sets), summary_rows(sets, traces.left_out)
        done.files.append(write_table(folder, name, histogram))
        done.files.append(write_table(folder, f"{name}-summary", summary))
        size = (3.2 * (len(sets) + 1), _HEIGHT)
        done.files += write_drawing(folder, name, size, partial(draw_histogram, histogram=histogram, summary=summary))


def _recorded(record: MethodRecord, tasks: Collection[str] | None) -> TraceSets:
    return TraceSets(recorded_sets(record, tasks))


def _scored(record: MethodRecord, tasks: Collection[str] | None, *, worker: bool) -> TraceSets:
    return scored_sets(record, base_policy(record), tasks, worker=worker)


def _domains(methods: Sequence[MethodOfRun], folder: Path, done: Analysis, split: Manifest | None) -> None:
    rows: list[Row] = []
    for method in methods:
        final, base = method.results.get("counts", {}), method.base
        mode = next((mode for mode in MODES if final.get(mode) and base.get(mode)), None)
        if mode is None:
            done.missing.append(
                f"domains of {method.label}: no evaluation at the end of the kind that the base policy has; see "
                "eval.final_episodes, eval.greedy"
            )
            continue
        train, expert = method.manifest["train"], method.manifest["expert"]
        tasks = train if split is None else [*train, *method.manifest["held_out"]]
        if split is not None:
            expert = split.expert
            if unknown := [task for task in tasks if task not in split.hashes]:
                done.missing.append(
                    f"domains of {method.label}: {len(unknown)} of its tasks are not in the split, first {unknown[0]!r}"
                )
                continue
        try:
            suite = load_suite(method.suite_name)
            domains = {task: suite.task(task).domain or "-" for task in tasks}
        except (TaskError, OSError) as error:
            done.missing.append(f"domains of {method.label}: {error}")
            continue
        sets = {"base": solved_tasks(base[mode]), "expert": expert, "final": solved_tasks(final[mode])}
        rows += domain_rows(method.label, domains, **sets)
    if rows:
        size = (11, _HEIGHT * len({row["method"] for row in rows}))
        _figure(folder, done, "domains", rows, size, draw_domains)


def _sensitivity(methods: Sequence[MethodOfRun], folder: Path, done: Analysis, split: Manifest | None) -> None:
    ended = [method for method in methods if method.results.get("success", {}).get("sampled")]
    done.missing += [f"sensitivity: {m.label} has no final evaluation" for m in methods if m not in ended]
    if not ended:
        return
    rows = sensitivity_rows([(m.suite, m.settings, _sampled_success(m, split)) for m in ended])
    done.files.append(write_table(folder, "sensitivity", rows))
    if len({row["suite"] for row in rows}) > 1:
        done.missing.append("sensitivity: the runs have different tasks; compare rows of the same suite only")


def _sampled_success(method: MethodOfRun, split: Manifest | None) -> dict[str, float | None]:
    """Final sampled success by task set, with ``overall``, of all evaluated tasks; expert-only tasks of the split."""
    evaluation = Evaluation.from_json(method.results.get("counts", {}).get("sampled", {}))
    success = {**method.results["success"]["sampled"], "overall": evaluation.success()}
    if split is not None and split.expert_only:
        success["expert_only"] = evaluation.success(split.expert_only)
    return success


def _cases(method: MethodOfRun, folder: Path, done: Analysis, limit: int) -> None:
    if not limit:
        return
    prepared = prepared_folder(method.record)
    if not (prepared / "manifest.json").exists():
        done.missing.append(f"cases of {method.label}: the run has no preparation yet")
        return
    preparation = load_preparation(prepared)
    cases = list(find_cases(load_traces(prepared / "experts"), preparation.converted, preparation.self_rolled, limit))
    if not cases:
        done.missing.append(f"cases of {method.label}: no task has an expert's, a converted and a self-rolled trace")
    for case in cases:
        name = _new_name(done, f"case-{_safe(method.run)}-{_safe(case.task_id)}")
        done.files.append(write_table(folder, name, case_rows(case)))
        done.files += write_drawing(folder, name, case_size(case), partial(draw_case, case=case))


def report(folder: Path, done: Analysis) -> Iterator[str]:
    """The files, and what is missing, as lines."""
    yield f"{folder}: {len(done.files)} files"
    yield from (f"  {name}" for name in done.files)
    yield from (f"not there: {sentence}" for sentence in done.missing)


def _new_name(done: Analysis, name: str) -> str:
    """The name, or with a number behind it if a file has it: names of runs or tasks may differ in other characters."""
    tried = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(each for each in tried if f"{each}.csv" not in done.files)


def _safe(name: str) -> str:
    """A name as part of a file's."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
