"""A short run with a fixed seed gives the results that are kept: else the study's result files are out of date."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recipes.study.bases import SHIPPED
from recipes.study.records import RESULTS_VERSION
from recipes.study.replay import KEPT, differences, replay


def test_differences_beyond_the_tolerance_are_named() -> None:
    kept = {"a@1": 0.5, "b@1": 100.0, "c@1": 1.0}
    assert differences({"a@1": 0.53, "b@1": 109.0, "c@1": 1.0}, kept) == []
    assert differences({"a@1": 0.56, "b@1": 120.0, "d@1": 1.0}, kept) == [
        "a@1: expected 0.5, got 0.56",
        "b@1: expected 100.0, got 120.0",
        "c@1: expected 1.0, got None",
        "d@1: expected None, got 1.0",
    ]


@pytest.mark.slow
def test_the_short_run_gives_the_kept_metrics(tmp_path: Path) -> None:
    kept = json.loads(KEPT.read_text())
    fix = "if the change is wanted, raise RESULTS_VERSION and run `python -m recipes.study --bed terse --replay`"
    assert (kept["code"], kept["base"]) == (RESULTS_VERSION, SHIPPED.hash()), (
        f"replay.json is of another version; {fix}"
    )
    found = differences(replay(tmp_path), kept["metrics"])
    assert not found, f"{fix}:\n" + "\n".join(found)
