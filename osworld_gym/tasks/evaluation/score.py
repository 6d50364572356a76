"""Scores one metric of a task with its getters, by our evaluators or by OSWorld's.

Ours are pure functions that run in this process, each within a deadline. OSWorld's run in sidecar processes
(``official_pool.py``), with a separate folder for each evaluation that holds copies of the task's gold files, so that
concurrent rollouts of one task do not share files.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation.getters import GETTERS, one_or_many
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.official_pool import (
    INSTALL_OFFICIAL,
    OfficialEvaluators,
    find_official,
    shared_official,
)
from osworld_gym.tasks.evaluation.sidecar.calling import BrokenResult, as_rules, call_metric, get_result
from osworld_gym.tasks.setup.file_cache import gold_file
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.types import Verdict

logger = logging.getLogger(__name__)

INFEASIBLE = "infeasible"
DEADLINE = 180.0  # seconds for one metric with its getters
#: getters of expected values: rules in the task file, gold files, pages of the live web
RULES = frozenset({"rule", "rule_relativeTime"})
GOLD = frozenset({"cloud_file", "pdf_from_url", "googledrive_file"})
NOT_FROM_DESKTOP = RULES | GOLD | {"info_from_website", "gotoRecreationPage_and_get_html_content"}


class Backend(StrEnum):
    """Which evaluators score a task."""

    auto = "auto"  #: ours where we have the metric and its getters, otherwise OSWorld's
    ours = "ours"
    official = "official"  #: always OSWorld's: for scores that are compared with published results


@dataclass(frozen=True, slots=True)
class Evaluators:
    """Which evaluators score, and their deadline.

    Args:
        backend: a :class:`Backend` or its name.
        deadline: seconds for one metric with its getters; an episode that exceeds it is not scored and fails as
            ``evaluator_failed``.
        official: the pool of OSWorld's evaluators; None: this process's shared pool, started when needed.

    Raises:
        ValueError: an unknown backend, or a deadline that is not positive.
    """

    backend: Backend | str = Backend.auto
    deadline: float = DEADLINE
    official: OfficialEvaluators | None = None

    def __post_init__(self) -> None:
        if self.backend not in list(Backend):
            raise ValueError(f"Evaluators.backend must be one of {', '.join(Backend)}, got {self.backend!r}")
        object.__setattr__(self, "backend", Backend(self.backend))
        if self.deadline <= 0:
            raise ValueError(f"Evaluators.deadline must be > 0 seconds, got {self.deadline}")


@dataclass(frozen=True, slots=True)
class Check:
    """One metric of an evaluator with its two getters: ``func(get(result), get(expected), **options)``."""

    func: str
    result: Mapping[str, Any]
    expected: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def has_gold(self) -> bool:
        """Whether the expected value is the content of gold files."""
        return self.expected is not None and self.expected["type"] in GOLD

    def unknown_to_us(self) -> str:
        """Error text that names the metric or getter that our evaluators lack; empty if they have all of them."""
        if self.func not in METRICS:
            known = ", ".join(sorted([*METRICS, INFEASIBLE]))
            return f"evaluator.func names unknown metric {self.func!r}; known: {known}"
        for key, config in (("result", self.result), ("expected", self.expected)):
            if config is not None and config["type"] not in GETTERS:
                known = ", ".join(sorted(GETTERS))
                return f"evaluator.{key} names unknown getter {config['type']!r}; known: {known}"
        return ""


def is_official(task_id: str, check: Check, evaluators: Evaluators) -> bool:
    """Whether OSWorld's evaluators score this check.

    Raises:
        TaskError: no installed evaluator can score it; the message states what is missing and how to install it.
    """
    unknown = check.unknown_to_us()
    if evaluators.backend == Backend.ours or (evaluators.backend == Backend.auto and not unknown):
        if unknown:
            raise TaskError(f"task {task_id!r}: {unknown}")
        return False
    if evaluators.official is None and find_official() is None:
        raise TaskError(
            f"task {task_id!r}: {unknown or check.func}; OSWorld's evaluators are not installed; {INSTALL_OFFICIAL}"
        )
    return True


def score(run: TaskRun, check: Check, evaluators: Evaluators) -> Verdict:
    """The verdict of one metric. A missing result scores 0; so does an unreadable one, with its ``problem`` set.

    Raises:
        TaskError: the metric or a getter is unknown, or its configuration is wrong.
        DesktopError: ``evaluator_failed`` when the evaluator, its rules or its gold files are at fault, or the deadline
            passed; the desktop's own reason when the desktop failed.
    """
    where = f"task {run.task.id!r}, metric {check.func!r}"
    official = is_official(run.task.id, check, evaluators)
    try:
        if official:
            return Verdict(_official_score(run, check, evaluators))
        return Verdict(within(evaluators.deadline, lambda: _our_score(run, check)))
    except BrokenResult as error:
        logger.warning("%s: the result cannot be read and is worth 0: %s", where, error)
        return Verdict(0.0, problem=f"{check.func}: {error}")
    except (DesktopError, TaskError):
        raise
    except Exception as error:
        message = f"{where}: {type(error).__name__}: {error}"
        raise DesktopError(FailureReason.evaluator_failed, message) from error


def _our_score(run: TaskRun, check: Check) -> float:
    """Raises BrokenResult, or whatever the getters and the metric raise (``sidecar/calling.py``)."""
    try:
        result = get_result(lambda: GETTERS[check.result["type"]](run, check.result))
    except FileNotFoundError:
        return 0.0
    if result is None:
        return 0.0
    return call_metric(METRICS[check.func], result, _expected(run, check), check.options, gold=check.has_gold())


def _expected(run: TaskRun, check: Check) -> tuple[Any, ...]:
    """The expected value as a tuple of 0 or 1 items. One that is read from the desktop may be broken by the policy."""
    if check.expected is None:
        return ()
    config, kind = check.expected, check.expected["type"]
    if kind not in NOT_FROM_DESKTOP:
        try:
            return (get_result(lambda: GETTERS[kind](run, config)),)
        except FileNotFoundError as error:
            raise BrokenResult(f"{error} is not on the desktop") from error
    value = GETTERS[kind](run, config)
    return (as_rules(value) if kind in RULES else value,)


def _official_score(run: TaskRun, check: Check, evaluators: Evaluators) -> float:
    server = run.desktop.server
    if server is None:
        raise TaskError(
            f"task {run.task.id!r}: metric {check.func!r} is one of OSWorld's and requires a guest server, which this "
            "provider does not have"
        )
    pool = evaluators.official or shared_official()
    metrics, getters = pool.known()
    expected = [] if check.expected is None else [check.expected["type"]]
    for name, names in ((check.func, metrics), *((kind, getters) for kind in (check.result["type"], *expected))):
        if name not in names:
            raise TaskError(
                f"task {run.task.id!r}: OSWorld's evaluators at {pool.location.folder} do not know {name!r}; newer "
                "tasks require a newer checkout: set OSWORLD_ROOT"
            )
    address = urlsplit(server[0])
    chrome, vlc = run.desktop.forwarded(9222), run.desktop.forwarded(8080)
    with tempfile.TemporaryDirectory(prefix="osworld-gym-eval-") as folder:
        _fill(Path(folder), run, check)
        desktop = {
            "host": address.hostname,
            "port": address.port,
            "token": server[1],
            "password": run.desktop.client_password,
            "chromium_port": chrome and chrome[1],
            "vlc_port": vlc and vlc[1],
            "folder": folder,
        }
        question = {
            "func": check.func,
            "result": check.result,
            "expected": check.expected,
            "options": check.options,
            "gold": check.has_gold(),
            "on_desktop": check.expected is not None and check.expected["type"] not in NOT_FROM_DESKTOP,
        }
        score = pool.check(question, desktop, evaluators.deadline)
    return 0.0 if score is None else score


def _fill(folder: Path, run: TaskRun, check: Check) -> None:
    """Puts into ``folder`` what OSWorld's getters read there: gold files, and the output that a step stored."""
    for config in (check.result, check.expected or {}):
        if config.get("type") == "cloud_file":
            for url, dest in one_or_many(config):
                target = folder / dest
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run.files.get(gold_file(run.task.id, url, dest)), target)
    for name, data in run.outputs.items():
        (folder / Path(name).name).write_bytes(data)


def within(seconds: float, call: Callable[[], float]) -> float:
    """Runs the call in a separate thread and returns its result.

    Raises:
        DesktopError: ``evaluator_failed`` after ``seconds``; the thread keeps running and its result is dropped.
        BaseException: whatever the call raised.
    """
    outcome: list[float | BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001  re-raised in the calling thread
            outcome.append(error)

    thread = threading.Thread(target=work, name="evaluator", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise DesktopError(FailureReason.evaluator_failed, f"the evaluator took longer than {seconds:g} s")
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
