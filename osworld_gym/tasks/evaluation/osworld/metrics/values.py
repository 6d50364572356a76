"""Metrics on plain values: a command's output, a list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osworld_gym.tasks.evaluation.sidecar.calling import RuleError


def exact_match(result: Any, rules: Mapping[str, Any]) -> float:
    """1 when the result equals ``rules["expected"]``."""
    return float(result == rules["expected"])


def match_in_list(result: Any, rules: Mapping[str, Any]) -> float:
    """1 when the result is one of ``rules["expected"]``."""
    return float(result in rules["expected"])


def is_in_list(result: Any, rules: Mapping[str, Any]) -> float:
    """1 when ``rules["expected"]`` is one of the result's members (or part of the result's text)."""
    return float(result is not None and rules["expected"] in result)


def literal_match(result: Any, expected: Any, *, type: str = "str", ignore_case: bool = False) -> float:
    """1 when both are equal, as text (``type="str"``) or as lists of values converted to text (``list``).

    ``expected`` may be the value itself or a rule ``{"expected": value}``, which OSWorld's does not read.

    Raises:
        RuleError: ``type`` is neither ``str`` nor ``list``.
    """
    wanted = expected["expected"] if isinstance(expected, Mapping) and "expected" in expected else expected
    if type == "str":
        left, right = [str(result)], [str(wanted)]
    elif type == "list":
        if not isinstance(result, list | tuple) or not isinstance(wanted, list | tuple):
            return 0.0
        left, right = [str(value) for value in result], [str(value) for value in wanted]
    else:
        raise RuleError(f"literal_match: option 'type' must be 'str' or 'list', got {type!r}")
    if ignore_case:
        left, right = [value.lower() for value in left], [value.lower() for value in right]
    return float(left == right)
