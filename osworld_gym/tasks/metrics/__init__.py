"""Metrics: pure functions from a getter's result to a score in [0, 1]. The verifier finds them here by OSWorld's names.

A metric is ``f(result, expected, **options) -> float``; without ``expected`` in the task it is called with the result
alone. Files arrive as bytes (OSWorld passes paths), command output as text, None stands for "nothing there" and is
worth 0. What differs from OSWorld's functions of the same name stands in each docstring.
"""

from __future__ import annotations

from collections.abc import Callable

from osworld_gym.tasks.metrics.office import check_document, check_image, check_pdf, check_sheet, check_slides
from osworld_gym.tasks.metrics.sim import sim_state
from osworld_gym.tasks.metrics.structured import check_direct_json_object, check_json, check_json_settings
from osworld_gym.tasks.metrics.text import (
    check_include_exclude,
    check_list,
    compare_config,
    compare_csv,
    compare_text_file,
    diff_text_file,
    file_contains,
)
from osworld_gym.tasks.metrics.values import exact_match, is_in_list, literal_match, match_in_list

Metric = Callable[..., float]


METRICS: dict[str, Metric] = {
    metric.__name__: metric
    for metric in (
        exact_match,
        match_in_list,
        is_in_list,
        literal_match,
        check_include_exclude,
        check_list,
        compare_text_file,
        compare_config,
        compare_csv,
        diff_text_file,
        file_contains,
        check_json,
        check_json_settings,
        check_direct_json_object,
        check_sheet,
        check_document,
        check_slides,
        check_image,
        check_pdf,
        sim_state,
    )
}
