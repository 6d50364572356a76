"""The simulated desktop's metric: rules on its final state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osworld_gym.tasks.evaluation.sidecar.calling import RuleError

_MISSING = object()


def _contains(value: Any, wanted: Any) -> bool:
    return isinstance(value, (list, str, dict)) and wanted in value


def _subset(value: Any, wanted: Any) -> bool:
    return isinstance(value, list) and all(item in wanted for item in value)


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda value, wanted: type(value) is type(wanted) and value == wanted,
    "ne": lambda value, wanted: value is not _MISSING and value != wanted,
    "contains": _contains,
    "lacks": lambda value, wanted: value is not _MISSING and not _contains(value, wanted),
    "subset": _subset,
}


def _at(state: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(state, Mapping) or key not in state:
            return _MISSING
        state = state[key]
    return state


def sim_state(result: Any, rules: Any) -> float:
    """1.0 when the state satisfies every rule, else 0.0.

    Args:
        result: the state: bytes or text of ``/state.json``, or the object itself.
        rules: a list of ``{"path": [keys], "op": one of OPERATORS, "value": ...}``, or ``{"rules": that list}``.

    Raises:
        ValueError: no rule, an unknown operator, or a state that is not JSON.
    """
    if isinstance(rules, Mapping):
        rules = rules.get("rules")
    if not isinstance(rules, list) or not rules:
        raise RuleError(f"sim_state requires a list of at least one rule, got {rules!r}")
    state = json.loads(result) if isinstance(result, (bytes, str)) else result
    for rule in rules:
        if rule["op"] not in OPERATORS:
            raise RuleError(f"sim_state: unknown op {rule['op']!r}; known: {', '.join(OPERATORS)}")
    return float(all(OPERATORS[rule["op"]](_at(state, rule["path"]), rule["value"]) for rule in rules))
