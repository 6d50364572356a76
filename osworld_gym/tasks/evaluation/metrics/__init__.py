"""Metrics: pure functions from a getter's result to a score in [0, 1], registered by OSWorld's names.

A metric is ``f(result, expected, **options) -> float``; without ``expected`` in the task it is called with the result
only. Files are passed as bytes (OSWorld passes paths), command output as text. A result that is None (missing) scores 0
without a call. Differences from OSWorld's function of the same name are in the metric's docstring; a test runs both on
the same cases.
"""

from __future__ import annotations

from collections.abc import Callable

from osworld_gym.extensions import Registry
from osworld_gym.tasks.evaluation import osworld

Metric = Callable[..., float]

#: metrics of the bundled suites that OSWorld does not have: name → where it is
OURS = {
    **{
        name: f"{__name__}.office:{name}"
        for name in ("check_sheet", "check_document", "check_slides", "check_image", "check_pdf")
    },
    "sim_state": f"{__name__}.sim:sim_state",
}

METRICS: Registry[Metric] = Registry(
    "osworld_gym.metrics",
    {**osworld.located("metrics", osworld.METRICS), **OURS},
    expects="a function of a result and an expected value",
)
