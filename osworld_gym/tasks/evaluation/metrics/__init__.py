"""Metrics: pure functions from a getter's result to a score in [0, 1], registered by OSWorld's names.

A metric is ``f(result, expected, **options) -> float``; without ``expected`` in the task it is called with the result
only. Files are passed as bytes (OSWorld passes paths), command output as text. A result that is None (missing) scores 0
without a call. Differences from OSWorld's function of the same name are in the metric's docstring; a test runs both on
the same cases.
"""

from __future__ import annotations

from collections.abc import Callable

from osworld_gym.extensions import Registry
from osworld_gym.tasks.evaluation.metrics import office
from osworld_gym.tasks.evaluation.metrics.sim import sim_state
from osworld_gym.tasks.evaluation.osworld.metrics import (
    archives,
    browser,
    documents,
    pictures,
    player,
    settings,
    structured,
    text,
    values,
)

Metric = Callable[..., float]

#: metrics of the bundled suites that OSWorld does not have
OURS: tuple[Metric, ...] = (
    office.check_sheet,
    office.check_document,
    office.check_slides,
    office.check_image,
    office.check_pdf,
    sim_state,
)
_OSWORLDS = (values, text, structured, browser, player, pictures, documents, settings, archives)

METRICS: Registry[Metric] = Registry(
    "osworld_gym.metrics",
    {metric.__name__: metric for metric in (*(metric for module in _OSWORLDS for metric in module.ALL), *OURS)},
    expects="a function of a result and an expected value",
)
