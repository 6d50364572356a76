"""Verification: a finished episode's desktop → Verdict, by the task's evaluator, with OSWorld's rules.

Source: the flow of OSWorld's ``DesktopEnv.evaluate``. Different on purpose: what raises is an ``evaluator_failed``
DesktopError, never a score, and ``conj: or`` with a missing file scores that metric 0 instead of an older result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.getters import GETTERS
from osworld_gym.tasks.metrics import METRICS
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason, Verdict

INFEASIBLE = "infeasible"


@dataclass(frozen=True, slots=True)
class Check:
    """One metric of an evaluator with its two getters: ``func(get(result), get(expected), **options)``."""

    func: str
    result: Mapping[str, Any]
    expected: Mapping[str, Any] | None
    options: Mapping[str, Any]


def verify(task: Task, desktop: Desktop, *, stop: StopReason) -> Verdict:
    """Scores the desktop as it stands, after the evaluator's ``postconfig``.

    ``stop == call_user`` is OSWorld's ``FAIL``: score 1 on an infeasible task and 0 on any other; no other way of
    stopping makes an infeasible task a success (not the step limit).

    Raises:
        TaskError: the evaluator names an unknown metric or getter, or is not well formed.
        DesktopError: ``evaluator_failed`` when a getter or metric raised; the desktop's own reason when it failed.
    """
    given_up = stop is StopReason.call_user
    if task.evaluator.get("func") == INFEASIBLE:
        return Verdict(float(given_up))
    conj, checks = read_evaluator(task)
    if given_up:
        return Verdict(0.0)
    for step in task.evaluator.get("postconfig") or ():
        desktop.setup(step)
    scores = []
    for check in checks:
        score = _score(task, desktop, check)
        if conj == "and" and score == 0.0:
            return Verdict(0.0)
        if conj == "or" and score == 1.0:
            return Verdict(1.0)
        scores.append(score)
    return Verdict(sum(scores) / len(scores) if conj == "and" else max(scores))


def read_evaluator(task: Task) -> tuple[str, tuple[Check, ...]]:
    """The evaluator as ``(conj, checks)``: ``func`` may be one name or a list, the other keys then lists beside it.

    Raises:
        TaskError: naming the task and the key that is wrong.
    """
    evaluator = task.evaluator
    func = evaluator.get("func")
    many = isinstance(func, list)
    names = _column(task, "func", func if many else [func], count=None)
    results = _column(task, "result", evaluator.get("result") if many else [evaluator.get("result")], count=len(names))
    expected = evaluator.get("expected") or None
    expecteds = _column(task, "expected", (expected or [None] * len(names)) if many else [expected], count=len(names))
    options = evaluator.get("options") or None
    optionses = _column(task, "options", (options or [{}] * len(names)) if many else [options], count=len(names))
    conj = evaluator.get("conj", "and")
    if conj not in ("and", "or"):
        raise TaskError(f"task {task.id!r}: evaluator.conj wants 'and' or 'or', got {conj!r}")
    checks = [Check(n, r, e or None, o or {}) for n, r, e, o in zip(names, results, expecteds, optionses, strict=True)]
    for check in checks:
        _known(task, check)
    return conj, tuple(checks)


def _column(task: Task, key: str, value: Any, *, count: int | None) -> Sequence[Any]:
    if not isinstance(value, list) or not value or (count is not None and len(value) != count):
        wanted = "at least one metric" if count is None else f"a list of {count}, one for each metric"
        raise TaskError(f"task {task.id!r}: evaluator.{key} wants {wanted}, got {value!r}")
    return value


def _known(task: Task, check: Check) -> None:
    if check.func not in METRICS:
        known = ", ".join(sorted([*METRICS, INFEASIBLE]))
        raise TaskError(f"task {task.id!r}: evaluator.func names unknown metric {check.func!r}; known: {known}")
    for key, config in (("result", check.result), ("expected", check.expected)):
        if config is None and key == "expected":
            continue
        if not isinstance(config, Mapping) or config.get("type") not in GETTERS:
            got = config.get("type") if isinstance(config, Mapping) else config
            known = ", ".join(sorted(GETTERS))
            raise TaskError(f"task {task.id!r}: evaluator.{key} names unknown getter {got!r}; known: {known}")


def _score(task: Task, desktop: Desktop, check: Check) -> float:
    """One metric's score in [0, 1]; a result file that is not there is worth 0."""
    where = f"task {task.id!r}, metric {check.func!r}"
    try:
        try:
            result = GETTERS[check.result["type"]](desktop, check.result)
        except FileNotFoundError:
            return 0.0
        arguments = [result]
        if check.expected is not None:
            arguments.append(GETTERS[check.expected["type"]](desktop, check.expected))
        return float(METRICS[check.func](*arguments, **check.options))
    except (DesktopError, TaskError):
        raise
    except Exception as error:
        message = f"{where}: {type(error).__name__}: {error}"
        raise DesktopError(FailureReason.evaluator_failed, message) from error
