"""The card of an evaluation: its score with everything that is needed to compare it, as JSON-compatible values.

Every share has its denominator next to it, and episodes without a result are in none of them. Public scores of OSWorld
use 369 tasks, 361 (without the eight that need Google Drive) or those that did not crash: the card has all three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bepa_torchrl.evaluation.outcomes import Outcome, Result, by_task, successes
from bepa_torchrl.evaluation.statistics import (
    Estimate,
    all_pass_at_k,
    efficiency_quality_area,
    pass_at_k,
    success_interval,
)

SCHEMA = "osworld-gym-card-1"
FOLDER_TASKS = "tasks of the folder"  #: the suite of results that were read without one
#: OSWorld's tasks that need an account of Google Drive: 369 - 8 = 361
DRIVE_TASKS = frozenset(
    {
        "0c825995-5b70-4526-b663-113f4c999dd2",
        "22a4636f-8179-4357-8e87-d1743ece1f81",
        "46407397-a7d5-4c6b-92c6-dbe038b1457b",
        "4e9f0faf-2ecc-4ae8-a804-28c9a75d1ddc",
        "78aed49a-a710-4321-a793-b611a7c5b56b",
        "897e3b53-5d4d-444b-85cb-2cdc8a97d903",
        "a0b9dc9c-fc07-4a88-8c5d-5e3ecad91bcb",
        "b52b40a5-ad70-4c53-b5b0-5650a8387052",
    }
)
#: the categories of OSWorld's table (its show_result.py): name → domains
CATEGORIES = {
    "Office": ("libreoffice_calc", "libreoffice_impress", "libreoffice_writer"),
    "Daily": ("vlc", "thunderbird", "chrome"),
    "Professional": ("gimp", "vs_code"),
}


def make_card(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the card of an evaluation.

    Args:
        outcomes: of all tasks of the suite's edition, in any order; a task without any result is listed with one
            ``no_result`` per pass.
        facts: how they were measured: suite, policy, step budget, sampling, machine, evaluators, versions;
            ``limited`` if the tasks are the first of a longer list.

    Returns:
        ``score`` and ``interval`` (mean over the tasks that have a result of each task's success rate, None without
        any), ``mean_score`` (the same of the verifier's scores, with partial ones), ``denominators``, ``passes``,
        ``pass_at_k``, ``all_pass_at_k``, ``domains``, ``categories``, ``feasible``, ``infeasible``, ``stops``,
        ``no_result``, ``unreadable``, ``retried``, ``steps``, ``efficiency_quality``, ``desktop_hours`` and the facts.
    """
    tasks = by_task(outcomes)
    feasible = {task: episodes for task, episodes in tasks.items() if episodes[0].feasible}
    infeasible = {task: episodes for task, episodes in tasks.items() if not episodes[0].feasible}
    played = [outcome for episodes in tasks.values() for outcome in episodes]
    return {
        "schema": SCHEMA,
        **_rate(tasks),
        "mean_score": _mean(tasks, lambda episodes: [outcome.score or 0.0 for outcome in episodes]),
        "denominators": denominators(outcomes, facts.get("limited")),
        "passes": _passes(outcomes),
        **_at_k(tasks),
        "domains": _groups(outcomes, lambda outcome: outcome.domain),
        "categories": _categories(outcomes),
        "feasible": _rate(feasible),
        "infeasible": _rate(infeasible) | {"share": _share(len(infeasible), len(tasks))},
        "stops": dict(Counter(outcome.stop for outcome in played if outcome.stop).most_common()),
        "no_result": dict(
            Counter(outcome.reason for outcome in outcomes if outcome.result is Result.no_result).most_common()
        ),
        "unreadable": sum(bool(outcome.reason) for outcome in played),
        "retried": sum(outcome.retried for outcome in outcomes),
        "steps": _mean(tasks, lambda episodes: [float(outcome.steps) for outcome in episodes]),
        "efficiency_quality": _efficiency_quality(outcomes, facts),
        "desktop_hours": sum(outcome.seconds for outcome in outcomes) / 3600,
        **facts,
    }


def denominators(outcomes: Sequence[Outcome], limited: Mapping[str, int] | None = None) -> dict[str, Any]:
    """The numbers of tasks, and the score over each denominator that is in use.

    ``listed``: all tasks of the edition, or of a folder's results without one (:data:`FOLDER_TASKS`), those without a
    result counted as failures, as tables that store a crash as 0 do; ``limited`` in its place, and the number that they
    are the first ``of``, if a limit leaves tasks out.
    ``without_drive``: the same without OSWorld's eight Google Drive tasks. ``ran``: those that have a result.

    Args:
        outcomes: of all tasks, in any order.
        limited: ``tasks`` and ``of``; None: they are all tasks of the edition.
    """
    listed = list(dict.fromkeys(outcome.task for outcome in outcomes))
    tasks = by_task(outcomes)
    wins = {task: float(np.mean(successes(episodes))) for task, episodes in tasks.items()}
    sets = {"listed" if limited is None else "limited": listed, "ran": list(tasks)}
    if any(task in DRIVE_TASKS for task in listed):
        sets["without_drive"] = [task for task in listed if task not in DRIVE_TASKS]
    scores: dict[str, Any] = {
        name: {"tasks": len(ids), "score": _share(sum(wins.get(task, 0.0) for task in ids), len(ids))}
        for name, ids in sets.items()
    }
    if limited is not None:
        scores["limited"]["of"] = limited["of"]
    return scores | {
        "tasks_without_result": len(listed) - len(tasks),
        "episodes": len(outcomes),
        "episodes_without_result": sum(outcome.result is Result.no_result for outcome in outcomes),
    }


def _rate(tasks: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """``tasks``, ``score`` and ``interval`` of tasks that have results."""
    if not tasks:
        return {"tasks": 0, "score": None, "interval": None}
    rate: Estimate = success_interval([successes(outcomes) for outcomes in tasks.values()])
    return {"tasks": len(tasks), "score": rate.mean, "interval": [rate.low, rate.high]}


def _mean(tasks: Mapping[str, Sequence[Outcome]], value: Callable[[Sequence[Outcome]], list[float]]) -> float | None:
    return float(np.mean([np.mean(value(outcomes)) for outcomes in tasks.values()])) if tasks else None


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _passes(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """For each pass, the numbers of episodes by result, and the score over those that have one."""
    passes: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        passes.setdefault(outcome.attempt, []).append(outcome)
    out = []
    for number, members in sorted(passes.items()):
        counts = Counter(outcome.result for outcome in members)
        valid = counts[Result.success] + counts[Result.failure]
        score = _share(counts[Result.success], valid)
        out.append({"pass": number, **{str(kind): counts[kind] for kind in Result}, "score": score})
    return out


def _efficiency_quality(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The mean over passes of the efficiency-quality area; None where the steps or their budget are not known.

    Tasks are taken in the order of the suite, or without one in that of their ids; those without a result are left out.
    """
    budget = facts.get("steps_budget")
    passes: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.result is not Result.no_result:
            passes.setdefault(outcome.attempt, []).append(outcome)
    if budget is None or not any(outcome.steps for members in passes.values() for outcome in members):
        return None
    areas = [
        efficiency_quality_area([bool(win) for win in successes(members)], [each.steps for each in members], budget)
        for members in passes.values()
    ]
    order = "of their ids" if facts.get("suite") == FOLDER_TASKS else "of the suite"
    return {"area": float(np.mean(areas)), "order": order, "max_steps": budget}


def _at_k(tasks: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """``pass_at_k`` and ``all_pass_at_k`` for each k that tasks have episodes for; means over these tasks."""
    counts = [(int(sum(successes(outcomes))), len(outcomes)) for outcomes in tasks.values()]
    most = max((episodes for _, episodes in counts), default=0)
    out: dict[str, dict[str, Any]] = {"pass_at_k": {}, "all_pass_at_k": {}}
    for k in range(1, most + 1):
        able = [(wins, episodes) for wins, episodes in counts if episodes >= k]
        for name, function in (("pass_at_k", pass_at_k), ("all_pass_at_k", all_pass_at_k)):
            score = float(np.mean([function(wins, episodes, k) for wins, episodes in able]))
            out[name][str(k)] = {"tasks": len(able), "score": score}
    return out


def _groups(outcomes: Iterable[Outcome], name: Callable[[Outcome], str]) -> dict[str, dict[str, Any]]:
    """The rate of each group, with the tasks that have no result."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(name(outcome) or "tasks", []).append(outcome)
    return {group: _group(members) for group, members in sorted(groups.items())}


def _group(members: Sequence[Outcome]) -> dict[str, Any]:
    tasks = by_task(members)
    return _rate(tasks) | {"tasks_without_result": len({outcome.task for outcome in members} - set(tasks))}


def _categories(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """OSWorld's categories, micro-averaged over tasks; one is left out if a domain of it has no result."""
    have = {episodes[0].domain for episodes in by_task(outcomes).values()}
    return {
        category: _group([outcome for outcome in outcomes if outcome.domain in domains])
        for category, domains in CATEGORIES.items()
        if have.issuperset(domains)
    }
