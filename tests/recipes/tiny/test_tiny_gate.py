"""The gate: a base policy that fails a condition is refused with a line that names it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from recipes.tiny.gate import gate_failures

RATES = {"known": 0.93, "unknown": 0.08, "unknown_planned": 0.8, "known_planned": 0.94}
GOOD: dict[str, Any] = {
    "train": RATES,
    "held_out": RATES,
    "dialect": {"prompted_known": 0.6, "unprompted_share": 0.02},
    "divergence": {
        "raw": {"tail": 0.9, "js": 0.5},
        "converted": {"tail": 0.35, "js": 0.2},
        "level1": {"tail": 0.03, "js": 0.02},
        "level2": {"tail": 0.02, "js": 0.01},
        "on_policy": {"tail": 0.01, "js": 0.0},
    },
    "expert_only": 22,
}


def test_a_good_base_passes() -> None:
    assert gate_failures(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("train", "known"), 0.89, "train: known: expected 0.9 to 1, measured 0.89"),
        (("train", "known"), 0.95, "train: known with the plan: expected 0.95 to 1, measured 0.94"),
        (("held_out", "unknown"), 0.02, "held_out: unknown: expected 0.03 to 0.15, measured 0.02"),
        (("held_out", "unknown"), 0.16, "held_out: unknown: expected 0.03 to 0.15, measured 0.16"),
        (("train", "unknown_planned"), 0.7, "unknown with the plan: expected 0.75"),
        (("dialect", "prompted_known"), 0.4, "dialect: known tasks when prompted: expected 0.5"),
        (("dialect", "unprompted_share"), 0.3, "dialect: share unprompted: expected 0 to 0.1"),
        (("divergence", "converted", "tail"), 0.96, "converted: tail mass: expected 0.3 to 0.45"),
        (("divergence", "raw", "tail"), 0.3, "raw: tail mass: expected 0.35 to 1"),
        (("divergence", "level1", "tail"), 0.4, "level1: tail mass: expected 0 to 0.35"),
        (("divergence", "level2", "js"), 0.03, "level2: JS divergence: expected 0 to 0.02"),
        (("expert_only",), 12, "expert-only tasks: expected 20"),
    ],
)
def test_each_condition_is_named(path: tuple[str, ...], value: float, words: str) -> None:
    measured = copy.deepcopy(GOOD)
    entry = measured
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    lines = gate_failures(measured)
    assert any(words in line for line in lines), lines


def test_a_missing_figure_is_an_error() -> None:
    with pytest.raises(KeyError, match="held_out"):
        gate_failures({key: value for key, value in GOOD.items() if key != "held_out"})
