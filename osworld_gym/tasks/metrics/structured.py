"""Metrics on JSON: rules on single keys, and objects compared whole."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from osworld_gym.tasks.metrics.text import as_text

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}
_MISSING = object()


def _at(tree: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return _MISSING
    return tree


def _matches(value: Any, rule: Mapping[str, Any]) -> bool:
    """OSWorld's rule ``{"method", "ref"}`` on one value: comparison, ``re[.FLAG…]``, ``approx:tolerance``."""
    method, ref = rule["method"], rule["ref"]
    if method in _COMPARE:
        return bool(_COMPARE[method](value, ref))
    if method == "re" or method.startswith("re."):
        flags = reduce(operator.or_, (re.RegexFlag[name] for name in method.split(".")[1:]), re.RegexFlag(0))
        return re.search(ref, value, flags) is not None
    if method.startswith("approx:"):
        return abs(float(value) - float(ref)) <= float(method.split(":", 1)[1])
    raise ValueError(f"check_json: method {method!r} is unknown; known: {', '.join(_COMPARE)}, re[.FLAG], approx:<tol>")


def check_json(result: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when every rule of ``expect`` holds at its key path and none of ``unexpect`` does.

    A rule is ``{"key": [path], "method": "eq", "ref": value}``. A missing key fails ``expect`` and passes ``unexpect``.
    """
    if result is None:
        return 0.0
    tree = json.loads(as_text(result))
    for rule in rules.get("expect", ()):
        value = _at(tree, rule["key"])
        if value is _MISSING or not _matches(value, rule):
            return 0.0
    for rule in rules.get("unexpect", ()):
        value = _at(tree, rule["key"])
        if value is not _MISSING and _matches(value, rule):
            return 0.0
    return 1.0


def check_json_settings(actual: bytes | str | None, expected: Mapping[str, Any]) -> float:
    """1 when every key of ``expected["expected"]`` has its value in the JSON file; other keys are free."""
    if actual is None:
        return 0.0
    try:
        settings = json.loads(as_text(actual))
    except ValueError:
        return 0.0
    if not isinstance(settings, dict):
        return 0.0
    return float(all(settings.get(key, _MISSING) == value for key, value in expected["expected"].items()))


def _is_part(wanted: Any, value: Any) -> bool:
    """``expect_in_result``: some member of a wanted list is in the value, or the wanted text is part of it."""
    if isinstance(wanted, list):
        members = value if isinstance(value, list) else [value]
        return any(member in members for member in wanted)
    return isinstance(wanted, str) and isinstance(value, str | list) and wanted in value


def check_direct_json_object(result: Any, rules: Mapping[str, Any]) -> float:
    """1 when the object has every key of ``rules["expected"]`` with its value; other keys are free.

    Text is parsed first, single quotes taken as double ones, as OSWorld does. ``expect_in_result``: the wanted value
    needs only be part of the result's. ``ignore_list_order`` (beside or in ``expected``): lists are compared sorted.
    """
    if isinstance(result, bytes | str):
        try:
            result = json.loads(as_text(result).strip().replace("'", '"'))
        except ValueError:
            return 0.0
    if not isinstance(result, dict):
        return 0.0
    expected = dict(rules["expected"])
    unordered = bool(expected.pop("ignore_list_order", rules.get("ignore_list_order", False)))
    for key, wanted in expected.items():
        value = result.get(key)
        if rules.get("expect_in_result", False):
            same = _is_part(wanted, value)
        elif unordered and isinstance(wanted, list) and isinstance(value, list):
            same = sorted(map(str, wanted)) == sorted(map(str, value))
        else:
            same = wanted == value
        if not same:
            return 0.0
    return 1.0
