"""The local policy's gate, and its measurement on a few simulated tasks."""

from __future__ import annotations

from typing import Any

import pytest

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.policies.transformers.policy import load_policy
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.sim.suite import sim_suite
from recipes.tiny_local.evaluate import gate_failures, measure

RATES = {"known": 0.9, "unknown": 0.1, "unknown_planned": 0.6}
GOOD: dict[str, Any] = {"train": RATES, "held_out": RATES}


def test_a_good_base_passes() -> None:
    assert gate_failures(GOOD) == []


@pytest.mark.parametrize(
    ("split", "name", "rate", "words"),
    [
        ("train", "known", 0.79, "train: known: expected 0.8 to 1, measured 0.79"),
        ("held_out", "unknown", 0.16, "held_out: unknown: expected 0 to 0.15, measured 0.16"),
        ("train", "unknown_planned", 0.49, "train: unknown_planned: expected 0.5 to 1, measured 0.49"),
    ],
)
def test_each_condition_is_named(split: str, name: str, rate: float, words: str) -> None:
    assert gate_failures(GOOD | {split: RATES | {name: rate}}) == [words]


def few() -> Suite:
    """Two tasks of each split of the simulated suite, one known, one unknown."""
    suite = sim_suite()
    chosen = {
        split: [next(t for t in suite.split(split) if tag in t.tags) for tag in ("known", "unknown")]
        for split in ("train", "held_out")
    }
    return Suite(
        "few", tuple(t for tasks in chosen.values() for t in tasks), {k: [t.id for t in v] for k, v in chosen.items()}
    )


@pytest.mark.slow
def test_the_tiny_policy_is_measured_on_simulated_tasks() -> None:
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    measured = measure(policy, few(), SimDesktop, episodes=3, seed=0, desktops=4)
    assert measured["desktop_failures"] == 0
    for split in ("train", "held_out"):
        assert set(measured[split]) == {"known", "unknown", "unknown_planned"}
        # three episodes of one task: thirds
        assert all(3 * rate == pytest.approx(round(3 * rate), abs=1e-3) for rate in measured[split].values())
        assert measured[split]["known"] > 0


class Dying(SimDesktop):
    """A test double that fails in every episode, but not in the expert's runs."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        self._dies = type(self).made > 1

    def screenshot(self) -> Any:
        if self._dies:
            raise DesktopError(FailureReason.died, "gone")
        return super().screenshot()


@pytest.mark.slow
def test_failed_desktops_are_no_rate() -> None:
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    make: type[Desktop] = Dying
    with pytest.raises(ValueError, match="without a desktop failure, got 1 failed"):
        measure(policy, few(), make, episodes=1, seed=0, desktops=2)
