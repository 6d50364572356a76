"""Metrics on JSON: rules on single keys, and comparison of objects."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from osworld_gym.tasks.evaluation.osworld.metrics.rules import matches
from osworld_gym.tasks.evaluation.osworld.metrics.text import as_text

_MISSING = object()
_FAILED = "__EVALUATION_FAILED__"  # the value of OSWorld's getters for what they could not read


def _at(tree: Any, path: Sequence[str | int]) -> Any:
    """The value at a key path, or ``_MISSING``. Raises IndexError if a list on the path is too short."""
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, TypeError):
            return _MISSING
    return tree


def _load(value: bytes | str | None) -> Any:
    """The parsed JSON, or ``_MISSING`` if it cannot be read."""
    if value is None:
        return _MISSING
    try:
        return json.loads(as_text(value))
    except ValueError:
        return _MISSING


def check_json(result: bytes | str | None, rules: Mapping[str, Any]) -> float:
    """1 when every rule of ``expect`` is satisfied at its key path and none of ``unexpect`` is; 0 if it is not JSON.

    A rule is ``{"key": [path], "method": "eq", "ref": value}`` (methods: ``rules.matches``). A missing key fails
    ``expect`` and is None for ``unexpect``; a list that is too short fails both, and so do values that cannot be
    compared. (OSWorld reads YAML too, and scores an unknown method 0.)
    """
    tree = _load(result)
    try:
        return float(tree is not _MISSING and _satisfies(tree, rules))
    except (IndexError, TypeError):
        return 0.0


def _satisfies(tree: Any, rules: Mapping[str, Any]) -> bool:
    for rule in rules.get("expect", ()):
        value = _at(tree, rule["key"])
        if value is _MISSING or not matches(value, rule):
            return False
    for rule in rules.get("unexpect", ()):
        value = _at(tree, rule["key"])
        if matches(None if value is _MISSING else value, rule):
            return False
    return True


def check_json_settings(actual: bytes | str | None, expected: Mapping[str, Any]) -> float:
    """1 when every key of ``expected["expected"]`` has its value in the JSON file; other keys are ignored."""
    settings = _load(actual)
    if not isinstance(settings, dict):
        return 0.0
    return float(all(settings.get(key, _MISSING) == value for key, value in expected["expected"].items()))


def check_json_keybindings(actual: bytes | str | None, expected: Mapping[str, Any]) -> float:
    """1 when ``expected["expected"]`` is in the JSON list; its first line may be a comment, as in VS Code's files."""
    bindings = _load(actual)
    if not isinstance(bindings, list) and actual is not None:
        bindings = _load(as_text(actual).partition("\n")[2])
    return float(isinstance(bindings, list) and expected["expected"] in bindings)


def is_included_all_json_objects(gold: bytes | None, result: bytes | None) -> float:
    """1 when every key of the first JSON object is in the second, with its value."""
    wanted, actual = _load(gold), _load(result)
    if not isinstance(wanted, dict) or not isinstance(actual, dict):
        return 0.0
    return float(all(actual.get(key, _MISSING) == value for key, value in wanted.items()))


def _is_part(wanted: Any, value: Any) -> bool:
    """``expect_in_result``: a member of the expected list is in the list (or is the text), or the expected text is."""
    if isinstance(wanted, list):
        return isinstance(value, str | list) and any(
            member in value if isinstance(value, list) else member == value for member in wanted
        )
    return isinstance(wanted, str) and isinstance(value, str | list) and wanted in value


def check_direct_json_object(result: Any, rules: Mapping[str, Any]) -> float:
    """1 when the object has every key of ``rules["expected"]`` with its value; other keys are ignored.

    Text is parsed first, with single quotes read as double quotes, as OSWorld does. ``expect_in_result``: the expected
    value need only be part of the result's. ``ignore_list_order``, which a task has, is ignored, as in OSWorld: lists
    must have the same order.
    """
    if isinstance(result, bytes | str):
        result = _load(as_text(result).strip().replace("'", '"'))
    expected = rules["expected"]
    if not isinstance(result, dict) or _FAILED in expected.values():
        return 0.0
    same = _is_part if rules.get("expect_in_result", False) else operator.eq
    return float(all(same(wanted, result.get(key)) for key, wanted in expected.items()))
