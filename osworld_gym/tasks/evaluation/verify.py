"""Verification: scores the desktop of a finished episode with the task's evaluator.

Follows OSWorld's ``DesktopEnv.evaluate``. Deliberate differences: a metric that raises on a broken result scores 0; an
evaluator that fails for any other reason raises DesktopError (``evaluator_failed``) instead of scoring; a result that
exceeds the evaluators' limits scores 0; with ``conj: or``, a missing file scores that metric 0 instead of reusing an
earlier result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import ReplyTooLarge, StepRefused, TaskError
from osworld_gym.tasks.evaluation.check import INFEASIBLE, Check
from osworld_gym.tasks.evaluation.judging import is_judged
from osworld_gym.tasks.evaluation.score import Evaluators, is_official, score
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.tasks.task import Task, check_evaluator
from osworld_gym.types import StopReason, Verdict

logger = logging.getLogger(__name__)


def verify(
    task: Task,
    desktop: Desktop,
    *,
    stop: StopReason,
    evaluators: Evaluators | None = None,
    files: FileCache | None = None,
) -> Verdict:
    """Scores the desktop in its current state, after running the evaluator's ``postconfig``.

    ``stop == call_user`` is OSWorld's ``FAIL``: it scores 1 on an infeasible task and 0 on any other. With any other
    stop reason (also the step limit), an infeasible task scores 0.

    Several metrics are combined as in OSWorld: with ``conj: and`` their mean, or 0 once one scores 0; with ``conj: or``
    their maximum, or 1 once one scores 1.

    Args:
        evaluators: which evaluators score, and their deadline; None: ours where we have them, 180 s per metric.
        files: the cache of gold files; None: this machine's default cache.

    Raises:
        TaskError: the task is unsupported, its evaluator is malformed or names an unknown metric or getter, or a gold
            file is missing and the cache is offline.
        DesktopError: ``evaluator_failed`` when a getter or metric exceeded its deadline, or raised although the result
            is sound; the desktop's own reason when the desktop failed.
    """
    task.check_supported()
    given_up = stop is StopReason.call_user
    if task.evaluator.get("func") == INFEASIBLE:
        return Verdict(float(given_up))
    if is_judged(task):
        raise TaskError(f"task {task.id!r} has no verifier: a judge scores what was done (EpisodeOptions.judge)")
    who = evaluators or Evaluators()
    conj, checks = read_evaluator(task)
    for check in checks:
        is_official(task.id, check, who)  # raises for a wrong evaluator in every episode, before any scoring
    if given_up:
        return Verdict(0.0)
    run = TaskRun(task, desktop, files or FileCache(), {})
    try:
        _before_scoring(run, task.evaluator.get("postconfig") or ())
    except ReplyTooLarge as error:  # it reads what the policy left behind
        return Verdict(0.0, f"postconfig: {error}", exhausted=True)
    verdicts = []
    for check in checks:
        one = score(run, check, who)
        if conj == "and" and one.score == 0.0:
            return one
        if conj == "or" and one.score == 1.0:
            return one
        verdicts.append(one)
    if conj == "or":
        return max(verdicts, key=lambda verdict: verdict.score)
    return Verdict(sum(verdict.score for verdict in verdicts) / len(verdicts))


def _before_scoring(run: TaskRun, steps: Iterable[Mapping[str, Any]]) -> None:
    """Runs ``postconfig``. What it cannot do since the policy removed a file is left out, as in OSWorld, and scored."""
    for step in steps:
        try:
            run.run([step], sleeps=True)
        except StepRefused as error:
            logger.warning("task %s: a step of postconfig is left out: %s", run.task.id, error.message)


def read_evaluator(task: Task) -> tuple[str, tuple[Check, ...]]:
    """The evaluator as ``(conj, checks)``. If ``func`` is a list of metrics, the other keys are lists as well.

    An infeasible task has no checks.

    Raises:
        TaskError: the evaluator is malformed; the message names the task and the key.
    """
    evaluator = task.evaluator
    check_evaluator(evaluator, f"task {task.id!r}")
    func = evaluator["func"]
    if func == INFEASIBLE:
        return "and", ()
    names = func if isinstance(func, list) else [func]
    if INFEASIBLE in names:
        raise TaskError(f"task {task.id!r}: evaluator.func: {INFEASIBLE!r} must be the only metric, got {func!r}")
    results, expecteds, optionses = (
        (evaluator.get(key) or [None] * len(names)) if isinstance(func, list) else [evaluator.get(key)]
        for key in ("result", "expected", "options")
    )
    rows = zip(names, results, expecteds, optionses, strict=True)
    return evaluator.get("conj", "and"), tuple(Check(n, r, e or None, o or {}) for n, r, e, o in rows)
