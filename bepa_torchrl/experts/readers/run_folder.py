"""Reads the folders that OSWorld's runners write, for every family: one folder per run, named by the task's id.

Anywhere below the given folder, as ``lib_run_single.py`` and the runners derived from it write it::

    [args.json]                        settings of the runs below it
    <task id>/traj.jsonl               one JSON object per line; several lines may be one step, several runs one file
    <task id>/result.txt               the evaluator's score; missing after a crash or an interruption
    <task id>/step_0*.png              the first screenshot, which only some runners write
    <task id>/<screenshot_file>        the screenshot after (OS-Symphony: before) each line's action

What happened is a line's ``action``, the executed code; the texts are where the family puts them.
"""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.readers.executed import describe, executed_actions, executed_sources, source_points
from bepa_torchrl.experts.readers.families import FAMILIES
from bepa_torchrl.experts.readers.family import Family, Sample, plain_texts, response_text
from bepa_torchrl.experts.readers.log import Attempt, Line, read_attempts
from bepa_torchrl.experts.readers.pictures import Pictures, find_pictures, screenshot_names
from bepa_torchrl.experts.readers.run import Outcome, Run, without_form
from bepa_torchrl.experts.readers.scale import Said, scale_problem
from bepa_torchrl.experts.trace import TraceError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.types import Action

LOG, RESULT = "traj.jsonl", "result.txt"
REPLACED = "a later run in the same log has replaced it"
INTERRUPTED = "interrupted; result.txt is that of an earlier run in the same log"
_CODE_AGENT = "agent.call_code_agent"
#: of a run without a step, by which a family could be recognised
UNKNOWN = Family("unknown", "unknown", detect=lambda _: False, texts=plain_texts)


@dataclass(frozen=True)
class _Step:
    """One step's lines and what they executed; ``inexact`` is why ``actions`` is not all of it."""

    lines: tuple[Line, ...]
    source: str
    actions: tuple[Action, ...]
    points: tuple[tuple[float, float], ...]
    inexact: str


@dataclass(frozen=True)
class _LoggedRun:
    """One run before its family is known.

    Args:
        folder: the run's folder.
        name: the folder's below the source, and the number of the run in the log if there are several.
        group: the folder of runs of one runner.
        sample: its lines and settings.
        steps: its steps.
        scored: whether ``result.txt`` is its result, if there is one.
        later: screenshots of later runs in the log, which have replaced its own of the same names; None: there is none.
        families: the families that it may be of.
    """

    folder: Path
    name: str
    group: Path
    sample: Sample
    steps: tuple[_Step, ...]
    scored: bool
    later: frozenset[str] | None
    families: tuple[Family, ...]

    def said(self, family: Family, size: tuple[int, int] | None) -> list[Said]:
        """The points that the texts name, next to the executed ones; nothing if the screen's size is unknown."""
        if size is None:
            return []
        texts = ((tuple(family.points(response_text(step.lines[0]))), step.points) for step in self.steps)
        return [Said(text, executed, size) for text, executed in texts if text and executed]


def scan_runs(root: Path, family: Family | None = None) -> list[Run]:
    """All runs below a folder, by task id, including those that cannot be read (``skipped`` says why).

    Args:
        root: contains the runs' folders, at any depth.
        family: the family of all runs; None: it is recognised, run by run.
    """
    skipped: list[Run] = []
    attempts: list[_LoggedRun] = []
    for log in _logs(root, skipped):
        try:
            attempts += _read(log, root, family)
        except TraceError as error:
            name = "unknown" if family is None else family.name
            reason = str(error).removeprefix(f"{log.parent}{os.sep}")
            skipped.append(Run(name, _task_of(log), _name_of(log, root), Outcome.no_result, skipped=reason))
    groups: defaultdict[tuple[Path, tuple[str, ...]], list[_LoggedRun]] = defaultdict(list)
    for run in attempts:
        groups[run.group, tuple(each.name for each in run.families)].append(run)
    runs = [run for group in groups.values() for run in _read_group(group)]
    return sorted([*runs, *skipped], key=lambda run: (run.task_id, run.run))


def _logs(root: Path, skipped: list[Run]) -> Iterator[Path]:
    """The logs below a folder; a folder that cannot be listed becomes a skipped run."""

    def unreadable(error: OSError) -> None:
        path = Path(str(error.filename))
        reason = f"the folder is not readable ({error.strerror})"
        skipped.append(Run("unknown", path.name, str(path), Outcome.no_result, skipped=reason))

    for folder, below, files in os.walk(root, onerror=unreadable):
        below.sort()
        if LOG in files:
            yield Path(folder) / LOG


def _task_of(log: Path) -> str:
    return log.parent.resolve().name


def _name_of(log: Path, root: Path) -> str:
    name = log.parent.relative_to(root).as_posix()
    return _task_of(log) if name == "." else name


def _read(log: Path, root: Path, family: Family | None) -> list[_LoggedRun]:
    args_folder, args = _args(log.parent, root)
    group = args_folder or (log.parent.parent.parent if len(log.relative_to(root).parts) > 3 else root)
    attempts = read_attempts(log)
    scored = _scored(attempts, args) if (log.parent / RESULT).exists() else len(attempts)
    records = []
    for number, attempt in enumerate(attempts, 1):
        name = _name_of(log, root) + (f"#{number}" if len(attempts) > 1 else "")
        sample = Sample(attempt, args)
        families = (family,) if family is not None else _candidates(sample, log)
        steps = tuple(_step(lines) for lines in attempt.steps)
        after = [screenshot_names(other.steps) for other in attempts[number:]]
        later = frozenset[str]().union(*after) if after else None
        records.append(_LoggedRun(log.parent, name, group, sample, steps, number == scored, later, families))
    return records


def _scored(attempts: Sequence[Attempt], args: Mapping[str, Any]) -> int:
    """The number of the run that ``result.txt`` belongs to: the last, unless that crashed or was evidently interrupted.

    After a crash it is that of an earlier run that ended, if there is one: a runner that crashes writes none. A run was
    interrupted if it did not end, while an earlier one ended after more steps: so it was not the step limit that ended
    it. A run ends by itself, or at the limit that ``args.json`` says.
    """
    last, limit = attempts[-1], args.get("max_steps")

    def is_whole(run: Attempt) -> bool:
        return run.ended or (not run.error and isinstance(limit, int) and len(run.steps) >= limit)

    if is_whole(last):
        return len(attempts)
    for number in range(len(attempts) - 1, 0, -1):
        run = attempts[number - 1]
        if is_whole(run) and not run.error and (last.error or len(run.steps) > len(last.steps)):
            return number
    return len(attempts)


def _args(folder: Path, root: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """The nearest ``args.json`` at or above a run's folder: its folder and content. One that is not JSON is ignored."""
    for above in (folder, *folder.parents):
        path = above / "args.json"
        if path.is_file():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return above, {}
            return above, content if isinstance(content, dict) else {}
        if above == root:
            break
    return None, {}


def _candidates(sample: Sample, log: Path) -> tuple[Family, ...]:
    """The families whose description fits: the first, and those that differ from it in their scale only."""
    fits = [family for family in FAMILIES if family.detect(sample)]
    if not fits and sample.attempt.error and not sample.lines:
        return (UNKNOWN,)  # it crashed before its first step: any runner's
    if not fits:
        keys = sorted({key for line in (*sample.lines, *sample.attempt.notes) for key in line})
        raise TraceError(
            f"{log}: no known family writes the keys {', '.join(keys[:10])}; name it, as in agent_s2:FOLDER, or add a "
            "reader (docs/howto/reader.md)"
        )
    return tuple(family for family in fits if (family.texts, family.points) == (fits[0].texts, fits[0].points))


def _step(lines: tuple[Line, ...]) -> _Step:
    try:
        sources = [source for line in lines for source in executed_sources(line["action"])]
    except ValueError as error:
        return _Step(lines, "", (), (), f"unknown_action: {error}")
    actions, inexact = executed_actions(sources)
    points = tuple(point for source in sources for point in source_points(source))
    return _Step(lines, "\n".join(sources), actions, points, inexact)


def _read_group(group: Sequence[_LoggedRun]) -> list[Run]:
    """The runs of one folder of runs, all of the first family whose scale fits; refused if none does."""
    families = group[0].families
    pictures = [_pictures(run, families[0]) for run in group]
    problems = []
    for family in families:
        pairs = zip(group, pictures, strict=True)
        problems.append(scale_problem([s for run, seen in pairs for s in run.said(family, seen.size)], family.scales))
        if not problems[-1]:
            return [_run(run, family, seen, "") for run, seen in zip(group, pictures, strict=True)]
    return [_run(run, families[0], seen, problems[0]) for run, seen in zip(group, pictures, strict=True)]


def _pictures(run: _LoggedRun, family: Family) -> Pictures:
    lines = [step.lines for step in run.steps]
    pictures = find_pictures(run.folder, lines, run.sample.attempt.notes, family.picture, later=run.later)
    width, height = run.sample.args.get("screen_width"), run.sample.args.get("screen_height")
    if pictures.size is None and isinstance(width, int) and isinstance(height, int) and min(width, height) > 0:
        pictures.size = width, height
    return pictures


def _run(record: _LoggedRun, family: Family, pictures: Pictures, refused: str) -> Run:
    steps = tuple(_expert_step(step, family) for step in record.steps)
    inexact = [(i, step.inexact) for i, step in enumerate(record.steps) if step.inexact]
    inexact += [(i, "code_agent") for i, step in enumerate(steps) if step.call.startswith(_CODE_AGENT)]
    problems = [f"step {i + 1}: {reason}" for i, reason in sorted(inexact)] + pictures.problems
    known = {i for i, _ in inexact}
    problems += [f"step {i + 1}: no exact form in UI-TARS's text" for i in without_form(steps) if i not in known]
    if family.scales and pictures.size is None:
        problems.append("unknown screen size: the coordinates of the texts are not compared with the executed ones")
    silent = sum(not (step.plan or step.response) for step in steps)
    if silent:
        problems.append(f"no texts in {silent} of {len(steps)} steps: plans tell their actions only")
    outcome, why = _outcome(record)
    reason = why if outcome in (Outcome.crashed, Outcome.no_result) else ("" if steps else "the log has no step")
    run = Run(family.name, record.folder.resolve().name, record.name, outcome, steps, tuple(sorted(inexact)))
    notes = [
        str(note["instruction"])
        for note in (*record.sample.attempt.notes, *record.sample.lines)
        if "instruction" in note
    ]
    return replace(
        run,
        pictures=tuple(pictures.before),
        final=pictures.final,
        instruction=notes[0] if notes else "",
        problems=tuple(problems),
        skipped=refused or reason,
    )


def _expert_step(step: _Step, family: Family) -> ExpertStep:
    texts = family.texts(step.lines[0])
    return ExpertStep(
        subtask=texts.subtask,
        plan=texts.plan,
        reflection=texts.reflection,
        call=texts.call,
        pyautogui=step.source,
        intent=texts.intent or describe(step.actions),
        actions=step.actions,
        response=texts.response,
    )


def _outcome(record: _LoggedRun) -> tuple[Outcome, str]:
    """The outcome, and why there is no result."""
    if record.sample.attempt.error:
        return Outcome.crashed, f"crashed: {record.sample.attempt.error:.200}"
    if not record.scored:
        return Outcome.no_result, f"no result: {INTERRUPTED if record.later is None else REPLACED}"
    try:
        text = (record.folder / RESULT).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        failed = any(line.get("step_status") is False for line in record.sample.lines)
        return Outcome.no_result, f"no result.txt ({'a step failed' if failed else 'interrupted'})"
    except (OSError, ValueError) as error:
        return Outcome.no_result, f"result.txt is not readable ({error})"
    score = _score(text)
    if score is None:
        return Outcome.no_result, f"expected the evaluator's score in result.txt, got {text!r:.80}"
    return (Outcome.success if score == 1.0 else Outcome.failure), ""


def _score(text: str) -> float | None:
    if text in ("True", "False"):
        return float(text == "True")
    try:
        score = float(text)
    except ValueError:
        return None
    return score if math.isfinite(score) else None
