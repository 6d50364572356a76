"""The table of methods: its arithmetic, on results made by hand."""

from __future__ import annotations

import json

import pytest

from benchmarks.methods import cell, interval, report
from bepa_torchrl.experiment.config import load_config, settings_to_yaml


def test_interval_of_three_seeds() -> None:
    # mean 0.5, sample standard deviation 0.1, t(2) = 4.303: 4.303 * 0.1 / sqrt(3) = 0.24843
    centre, half = interval([0.4, 0.5, 0.6])
    assert centre == pytest.approx(0.5)
    assert half == pytest.approx(0.24843, rel=1e-4)


def test_one_seed_has_no_interval() -> None:
    assert cell([0.25]) == "25.0"
    assert cell([None]) == "–"


def test_report_reads_the_runs_that_are_there(tmp_path) -> None:
    for seed, rate in ((0, 0.4), (1, 0.6)):
        folder = tmp_path / f"methods-{seed}"
        (folder / "bepa").mkdir(parents=True)
        (folder / "bepa" / "config.yaml").write_text(settings_to_yaml(load_config(["eval.final_episodes=7"])))
        lines = [
            {"iteration": 0, "phase": "base"},
            {"iteration": 1, "phase": "rl", "groups_failed": 3.0, "cache/injected": 2.0, "cache/refreshed": 5.0},
        ]
        (folder / "bepa" / "iterations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        success = {"sampled": {"train": rate}, "greedy": {"train": rate}}
        results = {
            "methods": {
                "bepa": {"success": success, "totals": {"episodes": 128.0, "optimizer_steps": 4.0, "seconds": 90.0}}
            },
            "base": {"success": {"sampled": {"train": 0.1}, "greedy": {"train": 0.2}}},
            "sets": {"train": 42},
        }
        (folder / "results.json").write_text(json.dumps(results))
    text = report(tmp_path, [0, 1, 2], ["bepa"], "python -m benchmarks.methods")
    assert "seeds 0, 1," in text
    assert "(7 episodes per task)" in text
    # mean 50, sd 14.142, t(1) = 12.706: 12.706 * 14.142 / sqrt(2) = 127.06
    assert "| bepa | 50.0 ± 127.1 | – | – | – | – | 128 | 4 | 1.5 |" in text
    assert "| base | 10.0 ± 0.0 | – | – | – | – |  |  |  |" in text
    assert "| bepa | 3 | 2 | 5 |" in text


def test_report_without_a_run_states_the_fix(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"benchmarks\.methods"):
        report(tmp_path, [0], ["bepa"], "x")
