"""The gate of a base policy that thinks in free words: its conditions as data, and what is measured for them.

Fixed before any method was compared on such a policy. A policy passes with two seeds of the evaluation that were
used for no choice, for two seeds of its weights, and without sharpening or averaging chosen by these figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bepa_torchrl.policies.base import Policy
from bepa_torchrl.rollout.starts import responses_of, share_starting
from osworld_gym.tasks.oracles.sim.free_prose import TERSE_WORD
from recipes.tiny.dialect import PrefixedPolicy
from recipes.tiny.divergence import divergence, trace_sets
from recipes.tiny.evaluate import evidence, play_known, success_rate

#: the beginning of a terse response: forced upon the policy, it thinks without saying what it sees
TERSE_START = f"Thought: {TERSE_WORD}"
SPLITS = ("train", "held_out")


@dataclass(frozen=True)
class Condition:
    """``value - factor * other`` must be within ``low`` and ``high``; figures are named by their path, with dots."""

    value: str
    low: float
    high: float = float("inf")
    other: str = ""
    factor: float = 1.0

    def difference(self, measured: Mapping[str, Any]) -> float:
        """What has to be within the limits. Raises KeyError if a figure is missing."""
        value = figure(measured, self.value)
        return value - self.factor * figure(measured, self.other) if self.other else value

    def __str__(self) -> str:
        times = "" if self.factor == 1.0 else f"{self.factor:g} x "
        return f"{self.value} - {times}{self.other}" if self.other else self.value

    @property
    def limits(self) -> str:
        """The limits in words."""
        if self.high == float("inf"):
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


def figure(measured: Mapping[str, Any], path: str) -> float:
    """The figure at a path such as ``train.known``. Raises KeyError if it is missing."""
    found: Any = measured
    for key in path.split("."):
        found = found[key]
    return float(found)


def _on(split: str) -> tuple[Condition, ...]:
    """The conditions on the success rates of one split."""
    return (
        Condition(f"{split}.known", 0.88, 1.0),
        Condition(f"{split}.unknown", 0.03, 0.15),
        Condition(f"{split}.unknown_planned", 0.70, 1.0),
        Condition(f"{split}.known_planned", -0.02, other=f"{split}.known"),
        # the free style must be the good one: known tasks fall when the policy is forced to be terse without a plan
        Condition(f"{split}.known", 0.10, other=f"{split}.known_terse"),
    )


def _tail(name: str) -> str:
    return f"divergence.{name}.tail"


def _js(name: str) -> str:
    return f"divergence.{name}.js"


CONDITIONS = (
    *_on("train"),
    *_on("held_out"),
    Condition(_tail("on_policy"), 0.20, 0.33),
    Condition(_tail("level1"), 0.05, 0.15),
    Condition(_tail("level2"), 0.0, other=_tail("level1")),
    Condition(_tail("on_policy"), 0.0, other=_tail("level2")),
    Condition(_tail("converted"), 0.28, 0.40),
    Condition(_tail("raw"), 0.0, other=_tail("converted")),
    Condition(_js("raw"), 0.0, other=_js("converted")),
    Condition(_js("converted"), 0.0, other=_js("level1")),
    Condition(_js("level1"), 0.0, other=_js("level2"), factor=5.0),
    Condition("expert_only", 20),
    Condition("dialect.prompted_known", 0.45, 1.0),
    Condition("dialect.unprompted_share", 0.0, 0.05),
)
_ROUNDING = 1e-9  #: two figures of four digits differ by a little more or less than their difference


def free_gate_failures(measured: Mapping[str, Any]) -> list[str]:
    """One line per condition that the figures of :func:`measure_free` fail; empty if they pass.

    Raises:
        KeyError: ``measured`` lacks a figure.
    """
    lines = []
    for condition in CONDITIONS:
        found = condition.difference(measured)
        if not condition.low - _ROUNDING <= found <= condition.high + _ROUNDING:
            lines.append(f"{condition}: expected {condition.limits}, measured {found:.4g}")
    return lines


def measure_free(policy: Policy, *, episodes: int, seed: int) -> dict[str, Any]:
    """Everything that :data:`CONDITIONS` are about; rates in [0, 1], at temperature 1.

    Args:
        policy: a policy for the simulated desktop that thinks in free words.
        episodes: per task and setting.
        seed: the seed of all random choices.

    Returns:
        The figures of :func:`recipes.tiny.evaluate.measure`, and: per split ``known_terse``, the success rate on known
        tasks when every response is forced to be terse, without a plan; ``terse_share`` of the responses without a
        plan (training tasks); ``divergence_expert_only``, the divergences on the expert-only tasks alone.
    """
    found = evidence(policy, episodes=episodes, seed=seed)
    figures = found.figures
    for split in SPLITS:
        forced = play_known(PrefixedPolicy(policy, TERSE_START), split, episodes=episodes, seed=seed)
        figures[split]["known_terse"] = round(success_rate(forced), 4)
    figures["terse_share"] = round(share_starting(responses_of(found.rollouts), TERSE_START), 4)
    only = found.expert_only
    if only:
        sets = trace_sets(
            policy,
            [trace for trace in found.traces if trace.task_id in only],
            [replace(drawn, entries={k: v for k, v in drawn.entries.items() if k in only}) for drawn in found.drawn],
            [result for result in found.rollouts if result.job.task.id in only],
        )
        figures["divergence_expert_only"] = divergence(policy, sets)
    return figures
