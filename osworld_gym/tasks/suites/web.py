"""Tasks on web sites, from the published ``Online_Mind2Web.json``, unchanged, or a file in its format.

The published file has several editions of 300 tasks, whose levels and sites differ, and updated tasks have another id.
A result therefore names the hash of the file that it was measured with. As a suite, each task opens its web site in
Chromium, and a judge scores what the policy did: these tasks have no verifier of their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from osworld_gym.errors import TaskError
from osworld_gym.tasks.evaluation.judging import JUDGED
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task

LEVELS = ("easy", "medium", "hard")
#: the browser as OSWorld's own tasks start it, whose debugging port is 9222 on every provider
BROWSER: tuple[Mapping[str, Any], ...] = (
    {"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=1337"]}},
    {"type": "launch", "parameters": {"command": ["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"]}},
)


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

    @classmethod
    def of(cls, task: Task) -> WebTask:
        """The task that a task of :func:`web_suite` was made from."""
        raw = task.raw
        return cls(task.id, task.instruction, raw["website"], raw["reference_length"], task.domain)


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
        TaskError: it is missing, damaged, or not in this format.
    """
    try:
        data = path.read_bytes()
        lines = json.loads(data)
    except FileNotFoundError as error:
        raise TaskError(f"{path} is missing; name the published Online_Mind2Web.json, or a file like it") from error
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: not a readable JSON file ({error}); download it again") from error
    if not isinstance(lines, list) or not lines:
        raise TaskError(f"{path}: expected a JSON list of tasks, got {type(lines).__name__}; is it another file?")
    tasks: dict[str, WebTask] = {}
    for number, line in enumerate(lines):
        task = _task(line, f"{path}: task {number}")
        if task.id in tasks:
            raise TaskError(f"{path}: task {number}: the id {task.id!r} occurs twice; is it another edition?")
        tasks[task.id] = task
    return WebTasks(tasks, hashlib.sha256(data).hexdigest()[:16])


def web_suite(path: Path) -> Suite:
    """The tasks of a data file as a suite: one split ``test``, and the levels as tags. The revision is the file's hash.

    Raises:
        TaskError: as of :func:`read_web_tasks`, or a website is no URL of a web site.
    """
    read = read_web_tasks(path)
    tasks = tuple(map(_playable, read.tasks.values()))
    return Suite(str(path), tasks, {"test": [task.id for task in tasks]}, read.digest)


def site_url(website: str) -> str:
    """The URL of a website, which some editions give without ``https://``.

    Raises:
        TaskError: it is no URL of a web site, such as ``file:///etc/passwd``.
    """
    url = website if "://" in website else f"https://{website}"
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise TaskError(f"website: expected a URL such as https://www.example.org/, got {website[:200]!r}")
    return url


def _playable(task: WebTask) -> Task:
    return Task(
        id=task.id,
        instruction=task.text,
        config=(*BROWSER, {"type": "open_site", "parameters": {"url": site_url(task.website)}}),
        evaluator={"func": JUDGED, "result": {"type": "trajectory"}},
        domain=task.level,
        tags=(task.level,),
        raw={
            "snapshot": "chrome",
            "related_apps": ["chrome"],
            "proxy": True,
            "website": task.website,
            "reference_length": task.reference_length,
        },
    )


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
        raise TaskError(f"{where}: expected {keys} ({error!r}); is it another edition?") from error
    if task.level not in LEVELS:
        raise TaskError(f"{where}: expected the level {', '.join(LEVELS)}, got {task.level!r}")
    if task.id in ("", ".", "..") or Path(task.id).name != task.id:
        raise TaskError(f"{where}: expected a task_id that can name a folder, got {task.id[:80]!r}")
    return task
