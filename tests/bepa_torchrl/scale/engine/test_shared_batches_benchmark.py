"""The benchmark of shared batches runs at its tiny shape, with equal responses, and prints its ratio last."""

from __future__ import annotations

import pytest

from benchmarks import shared_batches

pytestmark = pytest.mark.vllm


def test_it_prints_a_ratio_of_equal_turns(capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--desktops", "3", "--episodes", "3", "--turns", "2", "--tokens", "8", "--window", "2048"]
    shared_batches.main([*shape, "--rounds", "1", "--latency", "0.05"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("6 of 6 turns equal") for line in lines)
    assert lines[-1].startswith("shared batches: ")
