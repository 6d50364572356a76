"""The tasks of Online-Mind2Web, from the published ``Online_Mind2Web.json``, unchanged.

The file has several editions of 300 tasks, whose levels and sites differ, and updated tasks have another id. A result
therefore names the hash of the file that it was measured with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bepa_torchrl.evaluation.grounding.files import SuiteFileError

LEVELS = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class WebTask:
    """A task.

    Args:
        id: its name; also that of its trajectory's folder.
        text: what is to be done.
        website: URL at which the run starts.
        reference_length: number of steps of a human.
        level: easy, medium or hard, as the file says; in some editions it does not follow from the length.
    """

    id: str
    text: str
    website: str
    reference_length: int
    level: str


@dataclass(frozen=True, slots=True)
class WebTasks:
    """The tasks of one edition.

    Args:
        tasks: by id, in the file's order.
        digest: the first 16 hex digits of the SHA-256 of the file.
    """

    tasks: Mapping[str, WebTask]
    digest: str


def read_web_tasks(path: Path) -> WebTasks:
    """The tasks of a data file.

    Raises:
        SuiteFileError: it is missing, damaged, or not in this format.
    """
    try:
        data = path.read_bytes()
        lines = json.loads(data)
    except FileNotFoundError as error:
        raise SuiteFileError(f"{path} is missing; give the published Online_Mind2Web.json (--data FILE)") from error
    except (OSError, ValueError) as error:
        raise SuiteFileError(f"{path}: not a readable JSON file ({error}); download it again") from error
    if not isinstance(lines, list) or not lines:
        raise SuiteFileError(f"{path}: expected a JSON list of tasks, got {type(lines).__name__}; is it another file?")
    tasks: dict[str, WebTask] = {}
    for number, line in enumerate(lines):
        task = _task(line, f"{path}: task {number}")
        if task.id in tasks:
            raise SuiteFileError(f"{path}: task {number}: the id {task.id!r} occurs twice; is it another edition?")
        tasks[task.id] = task
    return WebTasks(tasks, hashlib.sha256(data).hexdigest()[:16])


def _task(line: Any, where: str) -> WebTask:
    try:
        task = WebTask(
            str(line["task_id"]),
            str(line["confirmed_task"]),
            str(line["website"]),
            int(line["reference_length"]),
            str(line["level"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        keys = "task_id, confirmed_task, website, reference_length and level"
        raise SuiteFileError(f"{where}: expected {keys} ({error!r}); is it another edition?") from error
    if task.level not in LEVELS:
        raise SuiteFileError(f"{where}: expected the level {', '.join(LEVELS)}, got {task.level!r}")
    return task
