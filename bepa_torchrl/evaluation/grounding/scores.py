"""Scores of grounding and understanding suites, by the conventions of their papers. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bepa_torchrl.evaluation.grounding.answers import NoPoint
from bepa_torchrl.evaluation.grounding.items import Groups, Item, Question
from bepa_torchrl.evaluation.statistics import wilson
from osworld_gym.types import Point

#: divisions that the tables of ScreenSpot, ScreenSpot-Pro and MMBench-GUI combine
_COMBINED = (
    ("platform", "type"),
    ("group", "type"),
    ("difficulty", "platform"),
    ("grounding", "platform"),
    ("grounding", "platform", "type"),
)


@dataclass(frozen=True, slots=True)
class Scored:
    """One item with its answer.

    Args:
        id: the ID of the item.
        right: whether the answer is right; None: no result, since the image is missing or the policy did not answer.
        format_error: whether the response could not be read; it counts as wrong.
        groups: the groups of the item.
        options: number of options of a question; 0 for a grounding item.
        refusal: whether the right answer was a refusal.
        outside: whether the point is outside of the image, as those of another scale are.
    """

    id: str
    right: bool | None
    format_error: bool = False
    groups: Groups | None = None
    options: int = 0
    refusal: bool = False
    outside: bool = False


def score_item(item: Item, answer: Point | NoPoint, size: tuple[int, int] | None = None) -> Scored:
    """A click in the region is right; where there is none, a refusal is.

    A point whose coordinates are both negative is a refusal, too, as in OSWorld-G's own script.

    Args:
        item: the item of the suite.
        answer: what the response names, in pixels of the image.
        size: (width, height) of the image, to notice points outside of it; None: not noticed.
    """
    outside = False
    if isinstance(answer, NoPoint):
        right = item.region is None and answer is NoPoint.refusal
    elif max(answer) < 0:
        right = item.region is None
    else:
        right = item.region is not None and item.region.contains(answer)
        outside = size is not None and not (0 <= answer[0] <= size[0] and 0 <= answer[1] <= size[1])
    wrong = answer is NoPoint.wrong_format
    return Scored(item.id, right, wrong, item.groups, refusal=item.region is None, outside=outside)


def score_question(question: Question, letter: str | None) -> Scored:
    """The right letter is right; a response without one is a format error."""
    return Scored(question.id, letter == question.answer, letter is None, question.groups, len(question.options))


def summary(scored: Sequence[Scored]) -> dict[str, Any]:
    """The scores with their denominators, JSON-compatible.

    Returns:
        ``score`` (micro average over the items that have a result) and ``interval`` (Wilson), ``items``, ``no_result``,
        ``format_errors``, ``outside_image`` (points that are not in the image), ``groups`` (per division and part),
        and by suite ``without_refusals`` (OSWorld-G's other convention, 510 items),
        ``weighted`` (L1: a hit is worth (m - 1) / m of m options, as the paper has it),
        ``weighted_normalised`` (L1: the same over what could be had, as the official script does it if it is asked
        to), and ``basic_and_advanced`` (L2: the mean of both, as the paper has it).
    """
    valid = [each for each in scored if each.right is not None]
    out: dict[str, Any] = {
        **_rate(valid),
        "items": len(scored),
        "no_result": len(scored) - len(valid),
        "format_errors": sum(each.format_error for each in valid),
        "outside_image": sum(each.outside for each in valid),
        "groups": _divisions(valid),
    }
    if any(each.refusal for each in scored):
        out["without_refusals"] = _rate([each for each in valid if not each.refusal])
    if any(each.options for each in scored):
        out["weighted"] = sum(_worth(each) for each in valid if each.right) / len(valid) if valid else None
        out["weighted_normalised"] = _normalised(valid)
    kinds = out["groups"].get("grounding", {})
    if set(kinds) == {"basic", "advanced"}:
        out["basic_and_advanced"] = (kinds["basic"]["score"] + kinds["advanced"]["score"]) / 2
    return out


def grounding_card(scored: Sequence[Scored], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The card of a grounding suite: :func:`summary`, and keys that the cards of episodes have, too.

    These are ``score``, ``interval``, ``denominators``, ``domains`` (the parts of the first division) and ``passes``.
    """
    overall = summary(scored)
    divisions = overall["groups"]
    answers = Counter(each.right for each in scored)
    renamed = ("score", "interval", "of", "items", "no_result")
    one_pass = {"pass": 0, "success": answers[True], "failure": answers[False], "no_result": answers[None]}
    return {
        "schema": "osworld-gym-grounding-card-1",
        "score": overall["score"],
        "interval": overall["interval"],
        "denominators": {
            "items": overall["items"],
            "published_items": facts.get("published_items"),
            "with_result": overall["of"],
            "no_result": overall["no_result"],
        },
        "domains": next(iter(divisions.values()), {}),
        "passes": [one_pass | {"score": overall["score"]}],
        **{name: value for name, value in overall.items() if name not in renamed},
        **facts,
    }


def _worth(question: Scored) -> float:
    """What a hit is worth: the more options, the more."""
    return (question.options - 1) / question.options


def _normalised(valid: Sequence[Scored]) -> float | None:
    """What was earned of what could be, by difficulty and platform, weighted by number of questions; None without."""
    parts: dict[object, list[Scored]] = {}
    for each in valid:
        groups = each.groups or {}
        parts.setdefault((groups.get("difficulty"), groups.get("platform")), []).append(each)
    total = 0.0
    for members in parts.values():
        most = sum(map(_worth, members))
        total += len(members) * sum(_worth(each) for each in members if each.right) / most if most else 0.0
    return total / len(valid) if valid else None


def _divisions(valid: Iterable[Scored]) -> dict[str, dict[str, Any]]:
    """The rate of each part of each division, and of the divisions that the official tables combine."""
    parts: dict[str, dict[str, list[Scored]]] = {}
    for each in valid:
        groups = dict(each.groups or {})
        for names in _COMBINED:
            if set(names) <= set(groups):
                groups[" × ".join(names)] = ", ".join(str(groups[name]) for name in names)
        for name, value in groups.items():
            for part in [value] if isinstance(value, str) else value:
                parts.setdefault(name, {}).setdefault(part, []).append(each)
    return {
        name: {part: _rate(members) for part, members in sorted(division.items())} for name, division in parts.items()
    }


def _rate(valid: Sequence[Scored]) -> dict[str, Any]:
    if not valid:
        return {"score": None, "interval": None, "of": 0}
    right = Counter(each.right for each in valid)[True]
    rate = wilson(right, len(valid))
    return {"score": rate.mean, "interval": [rate.low, rate.high], "of": len(valid)}
