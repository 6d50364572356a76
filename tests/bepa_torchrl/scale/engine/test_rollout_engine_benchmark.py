"""The benchmark of the engine runs at its tiny shape and prints its ratios last."""

from __future__ import annotations

import sys

import pytest

from benchmarks import rollout_engine

pytestmark = pytest.mark.vllm


def test_it_prints_ratios_of_equal_responses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--rows", "2", "--episodes", "2", "--turns", "3", "--tokens", "8", "--window", "2048"]
    monkeypatch.setattr(sys, "argv", ["rollout_engine", *shape])
    rollout_engine.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": vLLM")[0] for line in lines[-2:]] == ["single turn", "whole episodes"]
    assert any(line.startswith("single turn: 2 of 2 responses equal") for line in lines)
    assert any(line.startswith("whole episodes: 6 of 6 responses equal") for line in lines)
