"""Reads the folders that OSWorld's runners write, for any expert: one folder per task, named by the task id.

Anywhere below the given folder, as ``lib_run_single.py`` writes it::

    <task id>/traj.jsonl     one JSON object per line, in order
    <task id>/result.txt     the evaluator's score; 1.0 is a success
    <task id>/step_0*.png    the screenshot before the first step (the stock runner does not save it: add that line)
    <task id>/<screenshot_file of each line>    the screenshot *after* that step

Each line has ``action`` (pyautogui source, ``DONE``, ``FAIL`` or ``WAIT``), ``screenshot_file``, and ``response``, the
agent's response (the stock runner does not save it either: add ``"response": response``); its format is the expert's.
Instructions are not in the logs; they come from the suite.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from osworld_gym.tasks.oracles.base import ExpertStep
from osworld_gym.tasks.task import Task
from osworld_gym.types import Screenshot

#: (one line of the log, screen size (w, h), file and line for error messages) → step
StepReader = Callable[[Mapping[str, Any], tuple[int, int], str], ExpertStep]


def read_runs(folder: Path, tasks: Iterable[Task], expert: str, reader: StepReader) -> list[ExpertTrace]:
    """All runs below ``folder`` whose task is in ``tasks``, by task id, including failed ones.

    Args:
        folder: contains the tasks' folders, at any depth.
        tasks: the tasks; logs of other tasks are ignored.
        expert: name of the expert, stored in the traces.
        reader: reads one line of a log.

    Raises:
        TraceError: no run of these tasks, or a file is missing, invalid, or lacks a key; the message names it.
    """
    known = {task.id: task for task in tasks}
    logs = sorted(folder.rglob("traj.jsonl"), key=lambda path: (path.parent.name, str(path)))
    traces = [_trace(path, known[path.parent.name], expert, reader) for path in logs if path.parent.name in known]
    if not traces:
        raise TraceError(
            f"{folder}: no <task id>/traj.jsonl of any of the {len(known)} tasks ({len(logs)} other logs found); name "
            "the folder of each run by its task's id, or choose the suite and split of these runs"
        )
    return traces


def _trace(path: Path, task: Task, expert: str, reader: StepReader) -> ExpertTrace:
    lines = _lines(path)
    after = [_image(path.parent, str(value_of(line, "screenshot_file", str, where))) for where, line in lines]
    first = sorted(path.parent.glob("step_0*.png"))
    if not first:
        raise TraceError(f"{path.parent}: no step_0*.png, the screenshot before the first step")
    images = [_image(path.parent, first[0].name), *after]
    size = Screenshot(png=images[0]).size
    return ExpertTrace(
        task_id=task.id,
        instruction=task.instruction,
        expert=expert,
        steps=tuple(reader(line, size, where) for where, line in lines),
        screenshots=tuple(images[:-1]),
        success=_score(path.parent / "result.txt") == 1.0,
        final_screenshot=images[-1],
    )


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(where, line) for each line of the log."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: not a readable log ({error})") from error
    lines = []
    for number, raw in enumerate(text.splitlines(), 1):
        where = f"{path}:{number}"
        if not raw.strip():
            continue
        try:
            line = json.loads(raw)
        except ValueError as error:
            raise TraceError(f"{where}: not a JSON line ({error})") from error
        if not isinstance(line, dict):
            raise TraceError(f"{where}: expected a JSON object, got {type(line).__name__}")
        lines.append((where, line))
    if not lines:
        raise TraceError(f"{path}: the log has no step")
    return lines


def value_of(line: Mapping[str, Any], key: str, kind: type, where: str) -> Any:
    """The value of a key in a line of a log. Raises TraceError if it is missing or not of this type."""
    if not isinstance(line.get(key), kind):
        raise TraceError(f"{where}: key {key!r} must be {kind.__name__}, got {type(line.get(key)).__name__}")
    return line[key]


def _image(folder: Path, name: str) -> bytes:
    path = folder / name
    if path.parent != folder:
        raise TraceError(f"{folder}: a screenshot name must not contain a folder, got {name!r}")
    try:
        png = path.read_bytes()
        Screenshot(png=png).size  # noqa: B018  (raises if it is not a complete PNG)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: not a readable screenshot ({error})") from error
    return png


def _score(path: Path) -> float:
    try:
        return float(path.read_text(encoding="utf-8").strip())
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: expected the evaluator's score as a number ({error})") from error
