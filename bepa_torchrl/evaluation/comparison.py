"""Two evaluations of the same tasks, paired: which is better, by how much, and what the design could have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bepa_torchrl.evaluation.card_text import plain
from bepa_torchrl.evaluation.outcomes import Outcome, by_task, successes
from bepa_torchrl.evaluation.statistics import FEWEST_PAIRS, mcnemar, paired_difference, smallest_difference
from osworld_gym.desktops.identity import NOT_KNOWN

#: facts that two evaluations should share; a comparison names those that differ
SAME = ("suite", "digest", "steps_budget", "temperature", "provider", "machine", "machine_hash", "evaluators", "judge")
_BY_VERIFIERS = ("judge",)  #: facts that an evaluation is without, rather than that it does not state them


def compare(
    first: Sequence[Outcome],
    second: Sequence[Outcome],
    facts: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {}),
) -> dict[str, Any]:
    """Compares the tasks of which both evaluations have a result.

    A task counts as solved, for the exact McNemar test and the lists of flipped tasks, if more than half of its
    episodes succeeded; with an even number of passes a half counts as not solved.

    Args:
        first: the episodes of one evaluation.
        second: those of the other.
        facts: how each was measured.

    Returns:
        ``tasks`` in common, those that ``only_first`` and ``only_second`` have a result of, ``first`` and ``second``
        (scores on the common tasks), ``difference`` (second - first), ``interval`` (by
        :func:`~bepa_torchrl.evaluation.statistics.paired_difference`), ``mcnemar`` (``only_first``, ``only_second``,
        ``p``), ``smallest_difference`` (that these tasks and passes would show with a power of 80 %; None if nobody can
        say), ``gained`` and ``lost`` tasks, ``differing_facts``, and ``unknown_facts``: those that only one of the two
        states, as an evaluation of an earlier version, or one of another agent, has fewer (name → both values).

    Raises:
        ValueError: no task has a result in both.
    """
    one, other = by_task(first), by_task(second)
    common = [task for task in one if task in other]
    if not common:
        raise ValueError(
            f"the evaluations have no task in common ({len(one)} and {len(other)} tasks with results); "
            "compare two of the same suite"
        )
    scores = [successes(one[task]) for task in common], [successes(other[task]) for task in common]
    solved = [[sum(values) > len(values) / 2 for values in side] for side in scores]
    lost = [task for task, a, b in zip(common, *solved, strict=True) if a and not b]
    gained = [task for task, a, b in zip(common, *solved, strict=True) if b and not a]
    difference = paired_difference(*scores)
    pairs = {name: [each.get(name) for each in facts] for name in SAME}
    differing = {name: values for name, values in pairs.items() if values[0] != values[1]}
    means = [sum(sum(values) / len(values) for values in side) / len(side) for side in scores]
    return {
        "tasks": len(common),
        "only_first": len(one) - len(common),
        "only_second": len(other) - len(common),
        "first": means[0],
        "second": means[1],
        "difference": difference.mean,
        "interval": [difference.low, difference.high],
        "mcnemar": {"only_first": len(lost), "only_second": len(gained), "p": mcnemar(len(lost), len(gained))},
        "smallest_difference": smallest_difference(*scores),
        "gained": gained,
        "lost": lost,
        "differing_facts": {name: values for name, values in differing.items() if not _is_unknown(name, values)},
        "unknown_facts": {name: values for name, values in differing.items() if _is_unknown(name, values)},
    }


def _is_unknown(name: str, values: Sequence[Any]) -> bool:
    """Whether one of two values of a fact is not known, so that nobody can say whether they differ."""
    return name not in _BY_VERIFIERS and any(value in (None, NOT_KNOWN) for value in values)


def comparison_lines(comparison: Mapping[str, Any]) -> list[str]:
    """The comparison as lines of text."""
    low, high = (f"{100 * value:+.1f}" for value in comparison["interval"])
    test = comparison["mcnemar"]
    lines = [
        f"first   {100 * comparison['first']:.1f} %",
        f"second  {100 * comparison['second']:.1f} %, on the tasks that both have a result of: {comparison['tasks']}",
        f"difference {100 * comparison['difference']:+.1f} points, 95 % interval {low} to {high} (paired)",
        f"McNemar: tasks gained {test['only_second']}, lost {test['only_first']}, p = {test['p']:.3g}",
        _design(comparison["tasks"], comparison["smallest_difference"]),
    ]
    left = comparison["only_first"] + comparison["only_second"]
    lines += [f"left out, with a result in one of them only: {left}"] if left else []
    for name in ("gained", "lost"):
        lines += [f"{name}: {', '.join(comparison[name])}"] if comparison[name] else []
    for name, (one, other) in comparison["differing_facts"].items():
        lines.append(f"not the same {name}: {_stated(one)} and {_stated(other)}")
    for name, values in comparison["unknown_facts"].items():
        one, other = (NOT_KNOWN if value is None else _stated(value) for value in values)
        lines.append(f"not known whether both had the same {name}: {one} and {other}")
    return lines


def _stated(value: Any) -> str:
    """A fact as text."""
    return "none" if value is None or value == {} else plain(value)


def _design(tasks: int, smallest: float | None) -> str:
    """What the design could have seen."""
    if smallest is not None:
        return f"this design shows differences of {100 * smallest:.1f} points and more (power 80 %)"
    if tasks < FEWEST_PAIRS:
        why = f"{tasks} tasks; it takes {FEWEST_PAIRS} or more that both have a result of"
    else:
        why = f"these {tasks} tasks, which all differ alike, or too much"
    return f"the smallest difference that this design shows cannot be said from {why}"
