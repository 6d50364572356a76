"""docs/files.md and docs/walkthrough.md against the smallest run: every key and file there, and no other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from documented_keys import check_keys, documented, written_keys
from repository import ROOT
from rich.console import Console
from screenshot_trace import files_that_hold_screenshots
from smallest_run import TWO_STEPS, smallest_run

from bepa_torchrl.experiment.config import load_config, settings_to_yaml
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.method_process import MethodRun
from bepa_torchrl.experiment.phases import prepared_run, write_results
from bepa_torchrl.experiment.run_folder import run_folder
from bepa_torchrl.experiment.run_record import RunRecord
from bepa_torchrl.experiment.tasks import make_tasks

WALKTHROUGH = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Run:
    folder: Path
    held: dict[str, str]  #: files that held a screenshot while nothing but training ran


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that records everything, and from the same preparation one that only trains, which is traced."""
    parent = tmp_path_factory.mktemp("runs")
    whole = [*smallest_run(parent), *TWO_STEPS, "train.iterations=1", f"runs={parent}", "name=small"]
    config = load_config([*whole, "record.every=1", "record.outcomes=true", "record.starts.any=''"])
    folder = run_folder(config)
    folder.mkdir()
    tasks = make_tasks(config)
    prepared = prepared_run(config, folder, make_policy(config, seed=0), tasks, Console(quiet=True))
    RunRecord(folder / "level2").begin(settings_to_yaml(config))
    assert MethodRun(folder / "level2").run() == 0
    write_results(folder, ["level2"], config, prepared, tasks, Console(quiet=True))
    trained = load_config([*whole, "eval.every=0", "eval.final_episodes=0"])
    RunRecord(folder / "traced").begin(settings_to_yaml(trained))
    with files_that_hold_screenshots() as held:
        assert MethodRun(folder / "traced").run() == 0
    return Run(folder, held)


# --- docs/files.md --------------------------------------------------------------------------------------------------


def test_the_results_have_the_documented_keys(run: Run) -> None:
    whole = {key for key in written_keys(run.folder / "results.json") if not key.startswith("methods.")}
    check_keys(whole, documented("results.json"))
    check_keys(written_keys(run.folder / "level2" / "results.json"), documented("results.json of a method"))


def test_the_records_have_the_documented_keys(run: Run) -> None:
    episodes = documented("episodes.jsonl")
    check_keys(written_keys(run.folder / "level2" / "episodes.jsonl"), episodes)
    outcomes = [
        *documented("outcomes.jsonl"),
        *(k for k in episodes if k not in ("iteration", "whole") and not k.startswith("provenance.")),
    ]
    check_keys(written_keys(run.folder / "level2" / "outcomes.jsonl"), outcomes)
    check_keys(written_keys(run.folder / "level2" / "groups.jsonl"), documented("groups.jsonl"))
    check_keys(written_keys(run.folder / "level2" / "record.json"), documented("record.json"))
    iterations = documented("iterations.jsonl")
    check_keys(
        written_keys(run.folder / "level2" / "iterations.jsonl"),
        iterations,
        documented("iterations.jsonl", "optional key"),
    )


def test_the_folders_have_the_documented_files(run: Run) -> None:
    listed = {name.rstrip("/") for name in documented("The folder of a run", "file")}
    for folder in (run.folder, run.folder / "level2"):
        assert {path.name for path in folder.iterdir()} - listed - {"level2", "traced"} == set()
    assert {path.name for path in (run.folder / "prepared").iterdir()} == {
        name.rstrip("/") for name in documented("prepared", "file")
    }
    (checkpoint,) = (run.folder / "level2" / "checkpoints").iterdir()
    expected = {name.rpartition("-")[2].rstrip("/") for name in documented("Checkpoints", "file")}
    components = {path.name.partition("-")[2] for path in (checkpoint / "components").iterdir()}
    assert components | {"manifest.json"} == expected


# --- docs/walkthrough.md --------------------------------------------------------------------------------------------


def test_the_walkthrough_follows_the_screenshot_through_the_files_that_hold_it(run: Run) -> None:
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", WALKTHROUGH, re.M)
    assert len(listed) == len(set(listed))
    held = {f"{file} ({function})" for file, function in run.held.items() if file not in listed}
    assert held == set(), "these files hold a screenshot and are in no table of docs/walkthrough.md"
    assert set(listed) - set(run.held) == set(), "these files of docs/walkthrough.md hold no screenshot"
