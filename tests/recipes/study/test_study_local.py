"""Runs on real desktops as result files and as a section of the page, from small hand-made run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from local_checkpoint import random_checkpoint

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.experiment.config import load_config, settings_to_yaml
from bepa_torchrl.experts import Manifest, task_hashes
from osworld_gym.tasks.suites.varied.suite import varied_suite
from recipes.study import local_page
from recipes.study.local import main, results_of
from recipes.study.records import Result, read_result

SUITE = varied_suite()
TRAIN, HELD_OUT = SUITE.split("train")[:4], SUITE.split("held_out")[:2]
IDS = [task.id for task in (*TRAIN, *HELD_OUT)]
LINES: list[dict[str, Any]] = [
    {"iteration": 1, "phase": "rl", "seconds_collect": 10.0, "collect/steps": 40.0, "collect/busy_seconds": 30.0,
     "collect/desktops": 8.0, "collect/success": 0.25},
    {"iteration": 2, "phase": "rl", "seconds_collect": 30.0, "collect/steps": 40.0, "collect/busy_seconds": 130.0,
     "collect/desktops": 8.0, "collect/success": 0.5},
]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_checkpoint(tmp_path_factory.mktemp("policy"))


def make_run(folder: Path, checkpoint: Path, seed: int, wins: dict[str, int], *more: str) -> Path:
    """A finished run: the base policy solves 1 of 4 episodes of the first two training tasks, a method ``wins``."""
    settings = ["experiment=local", f"policy.checkpoint={checkpoint}", f"seed={seed}", *more]
    manifest = Manifest(
        hashes=task_hashes([*TRAIN, *HELD_OUT]),
        train=tuple(IDS[:4]),
        held_out=tuple(IDS[4:]),
        self_rolled=(IDS[0], IDS[3]),
        base_solved=(IDS[0], IDS[1]),
    )
    prepared = folder / "prepared"
    prepared.mkdir(parents=True)
    manifest.save(prepared / "manifest.json")
    for name in ("converted", "self_rolled"):
        TaskTraceCache().dumps(prepared / name)
    base = {task: [int(task in IDS[:2]), 4] for task in IDS}
    metrics = {"seconds": 180.0, "self_roll_episodes": 4.0, "failed_hung": 1.0}
    (prepared / "base.json").write_text(json.dumps({"base": {"sampled": base}, "metrics": metrics}))
    for name, won in wins.items():
        method = folder / name
        method.mkdir()
        (method / "config.yaml").write_text(settings_to_yaml(load_config([*settings, f"algo={name}"])))
        (method / "iterations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
        totals = {"episodes": 64.0, "optimizer_steps": 4.0, "seconds": 600.0, "failed_died": 2.0, "failed_hung": 0.0}
        counts = {"sampled": {task: [won, 4] for task in IDS}}
        (method / "results.json").write_text(json.dumps({"counts": counts, "totals": totals}))
    (folder / "results.json").write_text("{}")
    return folder


def test_a_run_becomes_one_result_per_method(tmp_path: Path, checkpoint: Path) -> None:
    bepa, grpo = results_of(make_run(tmp_path / "run", checkpoint, 3, {"bepa": 3, "grpo": 2}))
    assert (bepa.variant, bepa.seed, grpo.variant) == ("bepa", 3, "grpo")
    assert bepa.sets["expert_only"] == [IDS[3]]
    assert bepa.counts["sampled"][IDS[0]] == [3, 4]
    assert bepa.settings["algo.name"] == "bepa"
    assert bepa.totals["steps"] == 80.0
    assert bepa.totals["seconds_collect"] == 40.0
    assert bepa.totals["utilisation"] == pytest.approx(160.0 / (8 * 40.0))  # 30 + 130 busy seconds of 8 desktops


@pytest.mark.slow
def test_two_seeds_give_a_section_with_each_seeds_success_gains_costs_and_failures(
    tmp_path: Path, checkpoint: Path
) -> None:
    page, out = tmp_path / "results.md", tmp_path / "results" / "local"
    page.write_text("# Results\n\nfirst\n\n## Real desktops\n\nold\n\n## Last\n\nlast\n")
    runs = [make_run(tmp_path / f"r{seed}", checkpoint, seed, {"bepa": 3, "grpo": 1}) for seed in (0, 1)]
    assert main([*map(str, runs), "--out", str(out), "--page", str(page)]) == 0
    text = page.read_text()
    # base on train: (1/4 + 1/4 + 0 + 0) / 4 = 12.5 %; on the expert-only task 0; methods are alike on every task
    assert "| base | 1 evaluation | 12.5 | 0.0 | 0.0 / 0.0 |" in text
    assert "| bepa | 2 | 75.0 / 75.0 | 75.0 / 75.0 | 75.0 / 75.0 |" in text
    assert "| bepa − base | +62.5 / +62.5 | +75.0 / +75.0 | +75.0 / +75.0 |" in text
    assert "| bepa − grpo | +50.0 / +50.0 |" in text
    assert "cells are the values of seeds 0 / 1" in text.replace("\n", " ")
    assert " to " not in "".join(line for line in text.splitlines() if line.startswith("|"))  # no interval
    # 600 s, 180 s of preparation, 80 steps in 40 s; per run 2 died and, in its preparation, 1 hung
    assert "| bepa | 10.0 | 3.0 | 64 | 4 | 2.0 | 50 % | died 4, hung 2 |" in text
    assert text.startswith("# Results\n\nfirst\n")
    assert "old" not in text
    assert text.endswith("## Last\n\nlast\n")
    assert (out / "curves.png").stat().st_size > 5000
    assert main(["--out", str(out), "--page", str(page)]) == 0
    assert page.read_text() == text  # the page follows from the files


def test_three_seeds_give_intervals(tmp_path: Path, checkpoint: Path) -> None:
    out, page = tmp_path / "local", tmp_path / "page.md"
    runs = [make_run(tmp_path / f"r{seed}", checkpoint, seed, {"bepa": 3, "grpo": 1}) for seed in range(3)]
    assert main([*map(str, runs), "--out", str(out), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| base | 1 evaluation | 12.5 (0 to 25) |" in text
    assert "| bepa − base | 62.5 (50 to 75)* |" in text
    assert "In brackets the 95 % interval" in text.replace("\n", " ")


def test_a_single_seed_has_no_interval(tmp_path: Path, checkpoint: Path) -> None:
    out, page = tmp_path / "local", tmp_path / "page.md"
    run = make_run(tmp_path / "r", checkpoint, 0, {"level1": 2})
    assert main([str(run), "--out", str(out), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| level1 | 1 | 50.0 | 50.0 | 50.0 |" in text
    assert "| level1 − base | +37.5 | +50.0 | +50.0 |" in text
    assert "grpo" not in text


def test_results_of_other_settings_do_not_share_a_table(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        make_run(tmp_path / "a", checkpoint, 0, {"bepa": 3}),
        make_run(tmp_path / "b", checkpoint, 1, {"bepa": 3}, "train.iterations=3"),
    ]
    assert main([*map(str, runs), "--out", str(tmp_path / "local"), "--page", str(tmp_path / "page.md")]) == 2
    assert "bepa-1.json was made with other settings than bepa-0.json: train.iterations" in capsys.readouterr().err


def test_an_unfinished_run_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "expected a finished run with results.json; go on with resume=true" in capsys.readouterr().err


def test_failures_of_runs_and_preparations_are_summed(tmp_path: Path, checkpoint: Path) -> None:
    (result,) = results_of(make_run(tmp_path / "r", checkpoint, 0, {"bepa": 3}))
    result.write(tmp_path)
    again: Result = read_result(tmp_path / "bepa-0.json")
    assert local_page.failure_text([again]) == "died 2, hung 1"
    assert local_page.failure_text([]) == "0"
