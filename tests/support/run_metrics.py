"""The metrics in which two runs with different samplers must agree."""

from __future__ import annotations

from typing import Any


def comparable(line: dict[str, Any]) -> dict[str, float]:
    """The metrics of an iteration that both runs have, without times."""
    left_out = ("second", "engine/", "rollout_")
    return {
        name: value
        for name, value in line.items()
        if isinstance(value, int | float) and not any(part in name for part in left_out)
    }
