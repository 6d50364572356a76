"""The gate of a policy in free words: each condition of the issue is there, and a figure that fails it is named."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.policies.transformers.policy import load_policy
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.sim.suite import sim_suite
from recipes.tiny import evaluate
from recipes.tiny.free_gate import CONDITIONS, figure, free_gate_failures, measure_free

RATES = {"known": 0.90, "unknown": 0.06, "unknown_planned": 0.75, "known_planned": 0.89, "known_terse": 0.70}
GOOD: dict[str, Any] = {
    "train": RATES,
    "held_out": RATES,
    "dialect": {"prompted_known": 0.5, "unprompted_share": 0.02},
    "divergence": {
        "raw": {"tail": 0.9, "js": 0.5},
        "converted": {"tail": 0.33, "js": 0.1},
        "level1": {"tail": 0.1, "js": 0.05},
        "level2": {"tail": 0.2, "js": 0.01},
        "on_policy": {"tail": 0.27, "js": 0.0},
    },
    "expert_only": 20,
}


def test_a_good_base_passes() -> None:
    assert free_gate_failures(GOOD) == []


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("train.known", 0.87, "train.known: expected 0.88 to 1, measured 0.87"),
        ("held_out.unknown", 0.02, "held_out.unknown: expected 0.03 to 0.15, measured 0.02"),
        ("train.unknown", 0.16, "train.unknown: expected 0.03 to 0.15"),
        ("train.unknown_planned", 0.69, "train.unknown_planned: expected 0.7"),
        ("held_out.known_planned", 0.87, "held_out.known_planned - held_out.known: expected at least -0.02"),
        ("train.known_terse", 0.81, "train.known - train.known_terse: expected at least 0.1, measured 0.09"),
        ("divergence.on_policy.tail", 0.34, "divergence.on_policy.tail: expected 0.2 to 0.33"),
        ("divergence.on_policy.tail", 0.19, "divergence.on_policy.tail - divergence.level2.tail: expected at least 0"),
        ("divergence.level1.tail", 0.04, "divergence.level1.tail: expected 0.05 to 0.15"),
        ("divergence.level2.tail", 0.09, "divergence.level2.tail - divergence.level1.tail: expected at least 0"),
        ("divergence.converted.tail", 0.27, "divergence.converted.tail: expected 0.28 to 0.4"),
        ("divergence.raw.tail", 0.3, "divergence.raw.tail - divergence.converted.tail"),
        ("divergence.raw.js", 0.09, "divergence.raw.js - divergence.converted.js"),
        ("divergence.converted.js", 0.04, "divergence.converted.js - divergence.level1.js"),
        ("divergence.level2.js", 0.011, "divergence.level1.js - 5 x divergence.level2.js: expected at least 0"),
        ("expert_only", 19, "expert_only: expected at least 20"),
        ("dialect.prompted_known", 0.44, "dialect.prompted_known: expected 0.45"),
        ("dialect.unprompted_share", 0.06, "dialect.unprompted_share: expected 0 to 0.05"),
    ],
)
def test_each_condition_is_named(path: str, value: float, words: str) -> None:
    measured = copy.deepcopy(GOOD)
    entry = measured
    *folders, name = path.split(".")
    for key in folders:
        entry = entry[key]
    entry[name] = value
    lines = free_gate_failures(measured)
    assert any(words in line for line in lines), lines


def test_figures_at_a_limit_pass() -> None:
    measured = copy.deepcopy(GOOD)
    measured["train"] = {**RATES, "known": 0.88, "known_planned": 0.86, "known_terse": 0.78}
    assert free_gate_failures(measured) == []


def test_a_missing_figure_is_an_error() -> None:
    with pytest.raises(KeyError, match="held_out"):
        free_gate_failures({key: value for key, value in GOOD.items() if key != "held_out"})


@pytest.mark.slow
def test_every_condition_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on every fourth task with the policy that ships, which thinks in no free words and does not pass."""
    suite = sim_suite()
    few = {split: [task.id for task in suite.split(split)[::4]] for split in ("train", "held_out")}
    monkeypatch.setattr(evaluate, "sim_suite", lambda: Suite("few", suite.tasks, few))
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    measured = measure_free(policy, episodes=1, seed=3)
    assert all(math.isfinite(condition.difference(measured)) for condition in CONDITIONS)
    assert any("on_policy.tail" in line for line in free_gate_failures(measured))
    assert measured["terse_share"] == 0.0
    assert 0 < figure(measured, "divergence_expert_only.level1.tokens") < figure(measured, "divergence.level1.tokens")
