"""Results in OSWorld's own layout: written, so that its scripts read ours, and read, with crashes told apart.

    <domain>/<task id>/result.txt    the score, one number as text; True and False occur
    <domain>/<task id>/traj.jsonl    a line per step, or {"Error": ...} if the runner crashed

Defined by OSWorld's lib_run_single.py and show_result.py. A crash has no result.txt there, so that its task vanishes
from the official table; here it is an episode without a result.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from bepa_torchrl.evaluation.outcomes import Outcome, Result, is_feasible
from bepa_torchrl.experts.readers import atif, records
from bepa_torchrl.experts.readers.check import CheckedRun, check_sources
from bepa_torchrl.experts.readers.run import Outcome as RunOutcome
from bepa_torchrl.experts.readers.run_folder import INTERRUPTED, REPLACED
from bepa_torchrl.experts.sources import split_source
from bepa_torchrl.experts.trace import TraceError
from bepa_torchrl.storage.run_folders import training_runs
from osworld_gym.atomic import write_text
from osworld_gym.tasks.suite import Suite

RESULT, TRAJECTORY = "result.txt", "traj.jsonl"
_NOT_SCORED = tuple((f"no result: {reason}",) for reason in (REPLACED, INTERRUPTED))
_NUMBER = re.compile(r"#\d+$")  #: of a run in a log that has several
_LAYOUT = f"<domain>/<task id>/{RESULT} as OSWorld's runner writes it"


def read_results(source: str, suite: Suite | None = None) -> list[Outcome]:
    """The runs of a results folder as outcomes; of several runs of a task each is one more pass.

    They are in the order of the suite's tasks; without a suite in that of the tasks' ids.

    Of several runs in one log, that which ``result.txt`` belongs to; without one the last. A score counts also if the
    runner crashed later, as when it saves the recording.

    What is wrong with a run's log does not matter to its score: that is what ``result.txt`` says, also where the log is
    damaged or was deleted, as in OSWorld's own table.

    Args:
        source: the folder, or ``NAME:FOLDER`` with the name of a reader of experts' logs.
        suite: whose tasks without any run are listed as without a result, and whose evaluators say which are feasible;
            None: the folder's tasks alone.

    Raises:
        TraceError: there is no run in the folder; or it is, has or belongs to a training run's, or has recordings of an
            expert, whose success says nothing about an agent.
    """
    _, folder = split_source(source)
    _check_agents(source, folder)
    tasks = {} if suite is None else {task.id: task for task in suite.tasks}
    outcomes: list[Outcome] = []
    seen: dict[str, int] = {}
    for run in _one_per_log(_runs(source, folder)):
        if tasks and run.task not in tasks:
            continue
        attempt = seen.get(run.task, 0)
        seen[run.task] = attempt + 1
        outcomes.append(_outcome(run, folder, attempt, suite))
    for task in tasks.values():
        if task.id not in seen:
            outcomes.append(
                Outcome(
                    task.id, task.domain, 0, Result.no_result, None, feasible=is_feasible(task), reason="no run of it"
                )
            )
    order = {task: number for number, task in enumerate(tasks)}
    return sorted(outcomes, key=lambda outcome: order[outcome.task]) if tasks else outcomes


def _check_agents(source: str, folder: Path) -> None:
    """Raises TraceError if what is in the folder is a training run's, or an expert's."""
    runs = training_runs(folder)
    if runs:
        run, more = runs[0], f", and {len(runs) - 1} others" if len(runs) > 1 else ""
        trained = next((path for path in sorted(run.glob("*/policy")) if path.is_dir()), run / "METHOD" / "policy")
        raise TraceError(
            f"--from {source}: expected results of an agent, {_LAYOUT}, got the training run {run}{more}, whose traces "
            f"are its expert's; evaluate its policy with `bepa eval policy.checkpoint={trained} --out FOLDER`, or see "
            f"how it went with `bepa status {run}`"
        )
    recording = next(records.recordings(folder), None)
    if recording is not None:
        raise TraceError(
            f"--from {source}: expected results of an agent, {_LAYOUT}, got recordings of an expert, such as "
            f"{recording}; they are no results: `bepa experts check {source}` shows them, and an agent's results must "
            "be in a folder without them"
        )


def result_folders(source: str) -> list[str]:
    """The folders above ``<domain>/<task id>`` that a source has results in, such as one per model or pass, by name."""
    _, folder = split_source(source)
    return sorted({path.parents[2].relative_to(folder).as_posix() for path in folder.glob(f"**/*/*/{RESULT}")})


def _runs(source: str, folder: Path) -> list[CheckedRun]:
    """The runs with a log, and those of which only the result was kept, by task and folder."""
    alone = [path.parent for path in sorted(folder.rglob(RESULT)) if not _has_log(path.parent)]
    results = [
        CheckedRun(
            source, path.relative_to(folder).as_posix(), "", path.resolve().name, 0, RunOutcome.no_result, (), (), True
        )
        for path in alone
    ]
    try:
        runs = check_sources([source]).runs
    except TraceError:
        if not results:
            raise
        return results
    return sorted([*_one_per_trial(runs), *results], key=lambda run: (run.task, run.run))


def _one_per_trial(runs: Iterable[CheckedRun]) -> list[CheckedRun]:
    """The runs; of a trial of Harbor's whose trajectory is in several files, one with the steps of all."""
    out: dict[str, CheckedRun] = {}
    for run in runs:
        key = f"trial {atif.trial_of(run.run)}" if run.family == atif.NAME else run.run
        out[key] = replace(out[key], steps=out[key].steps + run.steps) if key in out else run
    return list(out.values())


def _one_per_log(runs: Sequence[CheckedRun]) -> list[CheckedRun]:
    """The runs without those that another one in the same log has replaced, crashed ones included."""
    scored = [run for run in runs if run.problems[:1] not in _NOT_SCORED]
    crashed = {_log(run): run for run in scored if run.outcome == RunOutcome.crashed}  # the last one of each log
    others = {_log(run) for run in scored if run.outcome != RunOutcome.crashed}
    return [
        run
        for run in scored
        if run.outcome != RunOutcome.crashed or (_log(run) not in others and crashed[_log(run)] is run)
    ]


def _log(run: CheckedRun) -> str:
    """The folder of a run below the source."""
    return _NUMBER.sub("", run.run)


def _has_log(folder: Path) -> bool:
    return any((folder / name).exists() for name in (TRAJECTORY, "trajectory.json"))


def _outcome(run: CheckedRun, folder: Path, attempt: int, suite: Suite | None) -> Outcome:
    task = None if suite is None else suite.task(run.task)
    above = "" if run.family == atif.NAME else Path(run.run).parent.name  # a trial of Harbor's names no domain
    domain = above if task is None else task.domain
    feasible = task is None or is_feasible(task)
    score, reason = _score_of(run, folder)
    if score is None:
        return Outcome(run.task, domain, attempt, Result.no_result, None, feasible, reason=reason, steps=run.steps)
    result = Result.success if score == 1.0 else Result.failure
    return Outcome(run.task, domain, attempt, result, score, feasible, steps=run.steps)


def _score_of(run: CheckedRun, folder: Path) -> tuple[float | None, str]:
    """The score of a run, and why it has none."""
    path = folder / _log(run) / RESULT
    if run.outcome == RunOutcome.crashed:  # with a score it was after the evaluation, as by the end of the recording
        score = read_score(path)
        return score, "" if score is not None else "the runner crashed"
    if not path.exists() and run.outcome in (
        RunOutcome.success,
        RunOutcome.failure,
    ):  # of another format than OSWorld's
        return float(run.outcome == RunOutcome.success), ""
    score = read_score(path)
    return score, "" if score is not None else "no readable result.txt"


def read_score(path: Path) -> float | None:
    """The score of a ``result.txt``: a number, or True or False; None if there is none, or something else."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if text in ("True", "False"):
        return float(text == "True")
    try:
        score = float(text)
    except ValueError:
        return None
    return score if 0.0 <= score <= 1.0 else None


def write_episode(
    folder: Path, outcome: Outcome, responses: Sequence[str], actions: Sequence[str], screenshots: Sequence[Path]
) -> None:
    """Writes one episode as OSWorld's runner does.

    Args:
        folder: the folder of all results of one pass; the episode's is made below it and must not exist.
        outcome: the outcome of the episode; without a result there is no ``result.txt``.
        responses: the policy's, one per step.
        actions: the executed code of each step.
        screenshots: PNG files after each step, which are linked or copied; may be shorter, or empty.
    """
    place = folder / (outcome.domain or "tasks") / outcome.task
    place.mkdir(parents=True)
    lines = []
    for number, (response, action) in enumerate(zip(responses, actions, strict=True), start=1):
        line = {"step_num": number, "action": action, "response": response, "reward": 0, "done": False, "info": {}}
        if number <= len(screenshots):
            line["screenshot_file"] = f"step_{number}.png"
            _link(screenshots[number - 1], place / f"step_{number}.png")
        lines.append(line)
    if lines and outcome.score is not None:
        lines[-1] |= {"done": True, "reward": outcome.score}
    if outcome.result is Result.no_result:
        lines.append({"Error": outcome.reason})
    write_text(place / TRAJECTORY, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    if outcome.score is not None:
        write_text(place / RESULT, f"{outcome.score}\n")


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)
