"""What a base policy must show before methods are compared on it: thresholds for the results of ``measure``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

SPLITS = ("train", "held_out")
KNOWN = 0.90  #: minimum success on known tasks
UNKNOWN = (0.03, 0.15)  #: success on unknown tasks: rarely, but not never
PLANNED = 0.75  #: minimum success on unknown tasks with the plan
PROMPTED = 0.50  #: minimum success on known tasks in the expert's dialect
UNPROMPTED = 0.10  #: maximum share of responses in the dialect without being prompted into it
CONVERTED_TAIL = (0.30, 0.45)  #: share of converted tokens with p < 0.2 (paper: 0.32)
EXPERT_ONLY = 20  #: minimum number of training tasks that only the expert's plan makes the policy solve
#: order of the trace sets by Jensen-Shannon divergence, largest first (paper, figure "histogram")
ORDER = ("raw", "converted", "level1", "level2")


def gate_failures(measured: Mapping[str, Any]) -> list[str]:
    """What is wrong with a base policy, one line per failed condition; empty if it passes.

    Args:
        measured: result of :func:`recipes.tiny.evaluate.measure`.

    Raises:
        KeyError: ``measured`` lacks a figure.
    """
    lines = []

    def require(name: str, value: float, low: float, high: float = 1.0) -> None:
        if not low <= value <= high:
            lines.append(f"{name}: expected {low:g} to {high:g}, measured {value:g}")

    for split in SPLITS:
        rates = measured[split]
        require(f"{split}: known", rates["known"], KNOWN)
        require(f"{split}: unknown", rates["unknown"], *UNKNOWN)
        require(f"{split}: unknown with the plan", rates["unknown_planned"], PLANNED)
        require(f"{split}: known with the plan", rates["known_planned"], rates["known"])
    require("dialect: known tasks when prompted", measured["dialect"]["prompted_known"], PROMPTED)
    require("dialect: share unprompted", measured["dialect"]["unprompted_share"], 0.0, UNPROMPTED)
    sets = measured["divergence"]
    tail = sets["converted"]["tail"]
    require("converted: tail mass", tail, *CONVERTED_TAIL)
    require("raw: tail mass", sets["raw"]["tail"], tail)
    for name in ("level1", "level2", "on_policy"):
        require(f"{name}: tail mass", sets[name]["tail"], 0.0, tail)
    for farther, nearer in pairwise(ORDER):
        require(f"{nearer}: JS divergence", sets[nearer]["js"], 0.0, sets[farther]["js"])
    require("expert-only tasks", measured["expert_only"], EXPERT_ONLY, float("inf"))
    return lines
