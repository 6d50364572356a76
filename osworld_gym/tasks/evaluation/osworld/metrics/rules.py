"""Checks a value against a rule ``{"method", "ref"}`` of a task file, and computes the similarity of two texts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from osworld_gym.tasks.evaluation.sidecar.calling import RuleError

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
KNOWN = f"{', '.join(COMPARE)}, re[.FLAG], approx:<tolerance>, range.<t|e><t|e>, str_list_eq, str_set_eq"


def matches(value: Any, rule: Mapping[str, Any]) -> bool:
    """Whether the value satisfies the rule.

    Methods: comparisons; ``re[.FLAG…]``; ``approx:tolerance`` (absolute difference); ``range.te`` (0 < x <= 2 for
    ``[0, 2]``; t: exclusive, e: inclusive); ``str_list_eq`` and ``str_set_eq`` (quoted text, split at commas).

    Raises:
        RuleError: the method is unknown.
    """
    method, ref = str(rule["method"]), rule["ref"]
    if method in COMPARE:
        return bool(COMPARE[method](value, ref))
    if method == "re" or method.startswith("re."):
        flags = reduce(operator.or_, (re.RegexFlag[name] for name in method.split(".")[1:]), re.RegexFlag(0))
        return re.search(ref, value, flags) is not None
    if method.startswith("approx:"):
        try:
            return bool(abs(float(value) - ref) <= float(method.split(":", 1)[1]))
        except (ValueError, TypeError):
            return False
    if method.startswith("range."):
        lower, upper = (COMPARE[f"l{end}"] for end in method.removeprefix("range."))
        return lower(ref[0], value) and upper(value, ref[1])
    if method in ("str_list_eq", "str_set_eq"):
        kind = list if method == "str_list_eq" else set
        return kind(value.strip("\"'").split(",")) == kind(ref)
    raise RuleError(f"method {method!r} is unknown; known: {KNOWN}")


def record_matches(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether the record has every key of ``wanted`` with its value."""
    return all(key in record and record[key] == value for key, value in wanted.items())


def likeness(left: str, right: str) -> float:
    """Similarity 2 · LCS / (len + len) in [0, 1], LCS the longest common subsequence; 1 for two empty texts.

    Equal to rapidfuzz' ``fuzz.ratio`` / 100; LCS by Hyyrö's bit-vector algorithm.
    """
    if len(left) == len(right) == 0:
        return 1.0
    places: dict[str, int] = {}
    for i, letter in enumerate(left):
        places[letter] = places.get(letter, 0) | 1 << i
    full = (1 << len(left)) - 1
    row = full
    for letter in right:
        here = row & places.get(letter, 0)
        row = ((row + here) | (row - here)) & full
    return 2 * (len(left) - row.bit_count()) / (len(left) + len(right))
