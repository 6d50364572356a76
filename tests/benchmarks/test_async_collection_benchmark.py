"""The benchmark of asynchronous collection prints its ratios last; in order of admission the bound holds."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import async_collection


def test_the_last_lines_have_the_ratios(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--desktops", "4", "--groups", "2", "--group-size", "2", "--updates", "3", "--update", "0.02"]
    quick = ["--median", "0.005", "--staleness", "1"]
    monkeypatch.setattr(sys, "argv", ["async_collection", *small, *quick])
    async_collection.main()
    *_, lock, admission, completion, load, first, second = capsys.readouterr().out.splitlines()
    assert lock.startswith("lock-step ")
    assert int(admission.split()[-2]) <= 1
    assert load.startswith("load average")
    assert completion.startswith("completion, staleness 1")
    assert re.fullmatch(r"lock-step / admission, staleness 1: [\d.]+x wall time", first)
    assert re.fullmatch(r"lock-step / completion, staleness 1: [\d.]+x wall time", second)


@pytest.mark.slow
def test_ranks_are_compared_with_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--desktops", "2", "--groups", "2", "--group-size", "2", "--updates", "1", "--staleness", "1"]
    monkeypatch.setattr(sys, "argv", ["async_collection", *small, "--ranks", "2"])
    async_collection.main()
    *_, sync_one, sync_two, one, two, _, _, first, ratio, load = capsys.readouterr().out.splitlines()
    assert sync_one.startswith("1 rank, synchronous ")
    assert sync_two.startswith("2 ranks, synchronous ")
    assert one.startswith("1 rank, staleness 1 ")
    assert two.startswith("2 ranks, staleness 1 ")
    shown = r"staleness 1, {}: {}x one rank, [\d.]+x one rank that is synchronous \(wall time\)"
    assert re.fullmatch(shown.format("1 rank", r"1\.00"), first)
    assert re.fullmatch(shown.format("2 ranks", r"[\d.]+"), ratio)
    assert load.startswith("load average")
