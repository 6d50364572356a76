"""The record of a whole short run: every update is explained, exported and read back, and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import atif
import pytest
from smallest_run import smallest_run

from bepa_torchrl.analysis.records import find_records
from bepa_torchrl.cli import main
from bepa_torchrl.experts.readers import atif as reader
from bepa_torchrl.storage.json_lines import read_lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """level2: the random policy fails, and converted traces are injected into every group; two steps per iteration."""
    runs = tmp_path_factory.mktemp("runs")
    settings = [*smallest_run(runs), f"runs={runs}", "name=x", "record.every=2", "train.minibatch_groups=1"]
    assert main(["train", *settings]) == 0
    return runs / "x"


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main(list(command)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_every_update_has_its_rows_and_every_trace_its_updates(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = find_records(run)
    last = max(
        line["policy_version"] for line in read_lines(run / "level2" / "iterations.jsonl") if line["phase"] == "rl"
    )
    traces: dict[str, set[int]] = {}
    for update in range(1, int(last) + 1):
        (found,) = printed(capsys, "why", str(run), "--update", str(update), "--json")["methods"]
        injected = [e for e in found["episodes"] if e["off_policy"]]
        assert injected
        assert all(e["whole"] and e["updates"] == [update] for e in injected)
        assert {e["id"] for e in injected} == set(found["replaced"])
        for episode in injected:
            traces.setdefault(episode["provenance"]["trace"], set()).add(update)
    for trace, updates in traces.items():
        (found,) = printed(capsys, "why", str(run), "--trace", trace, "--json")["methods"]
        assert found["updates"] == sorted(updates)
    assert len({e.id for e in record.episodes}) == len(record.episodes)


@pytest.mark.slow
def test_its_exports_are_valid_and_read_back(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--format", "atif", "--out", str(tmp_path / "out")]) == 0
    lines = {line["id"]: line for line in find_records(run)[0].lines() if line["steps"]}
    runs = {each.run.split("/")[1]: each for each in reader.scan(tmp_path / "out")}
    assert runs.keys() == lines.keys()
    for name, line in lines.items():
        path = tmp_path / "out" / "level2" / name / "agent" / "trajectory.json"
        found = atif.Trajectory.model_validate_json(path.read_text())
        agent = [step for step in found.steps if step.source == "agent"]
        assert [step.metrics and step.metrics.completion_token_ids for step in agent] == [
            step["tokens"] for step in line["steps"]
        ]
        assert [step.is_copied_context for step in agent] == [line["off_policy"]] * len(agent)
        if not line["off_policy"]:
            assert [step.response for step in runs[name].steps] == [step["text"] for step in line["steps"]]


@pytest.mark.slow
def test_its_figures_are_drawn_with_the_traces_scored_by_the_base_policy(run: Path, tmp_path: Path) -> None:
    assert main(["analyze", str(run), "--score", "--out", str(tmp_path / "out")]) == 0
    summary = (tmp_path / "out" / "token_probabilities-level2-summary.csv").read_text()
    assert [row.split(",")[0] for row in summary.splitlines()] == ["set", "raw_expert", "converted", "on_policy"]
    metrics = [line for line in read_lines(run / "level2" / "iterations.jsonl") if line["phase"] == "rl"]
    assert all(0 <= line["injected/js"] <= 0.7 and 0 <= line["injected/tail_mass"] <= 1 for line in metrics)
