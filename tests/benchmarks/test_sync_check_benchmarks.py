"""The check after a weight sync: no alarm by rounding; each kind of layer is noticed from its documented size on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from repository import ROOT

from benchmarks.sync_perturbations import PARAMETERS, SIZES, measured, small_trainer
from benchmarks.sync_rounding import false_alarms

LOGITS = (8.0, 16.0, 32.0)


def documented() -> dict[str, float]:
    """Kind of layer → smallest noise that docs/vllm.md says is noticed."""
    page = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
    table = page.split("## What the check notices", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ([\d.]+) \| ([^|]+) \|", table, flags=re.MULTILINE)
    return {kind: float(size) for size, kinds in rows for kind in kinds.split(", ")}


@pytest.mark.parametrize("largest", LOGITS)
def test_rounding_alone_is_no_alarm(largest: float) -> None:
    assert false_alarms(largest, 2e-3, 8)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("largest", LOGITS)
def test_rounding_alone_is_no_alarm_in_a_thousand_syncs(largest: float) -> None:
    """Of logits up to 8, 16 and 32, each with an error of 0.2 % of the maximum in both computations."""
    alarms, before, mean, kl = false_alarms(largest, 2e-3, 1000)
    assert alarms == 0
    assert max(mean, kl) < 0.5  # of the limits
    assert before > 100  # by the check that was used before


@pytest.mark.slow
def test_each_kind_of_layer_is_noticed_from_the_documented_size_on(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    found = measured(small_trainer(tmp_path), 24)
    expected = documented()
    assert found.keys() == expected.keys() == PARAMETERS.keys()
    assert set(expected.values()) <= set(SIZES)
    assert max(expected.values()) == 0.1
    missed = {kind: found[kind] for kind, size in expected.items() if found[kind][size] <= 1}
    assert not missed
