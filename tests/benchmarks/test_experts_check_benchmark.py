"""The benchmark of ``bepa experts check`` on a few small runs."""

import pytest

from benchmarks.experts_check import main


def test_it_reads_every_run(capsys: pytest.CaptureFixture[str]) -> None:
    headers, decoded = main(["--runs", "4", "--steps", "3", "--screen", "320x200"])
    assert 0 < headers < 60
    assert 0 < decoded < 60
    assert "4 runs of 3 steps" in capsys.readouterr().out
