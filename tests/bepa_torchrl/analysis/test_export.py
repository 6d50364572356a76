"""Exports of a record made by hand: ATIF that its models accept and our reader reads back, JSON lines, rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import atif
import pytest
from hand_record import CLICK, DONE, PROVENANCE, hand_record, line, step, write
from PIL import Image

from bepa_torchrl.analysis.export.atif import arguments
from bepa_torchrl.analysis.export.lines import COLUMNS
from bepa_torchrl.analysis.records import find_records
from bepa_torchrl.cli import main
from bepa_torchrl.experts.readers import atif as reader
from bepa_torchrl.experts.readers.check import check_sources
from bepa_torchrl.experts.readers.run import Outcome
from bepa_torchrl.storage.json_lines import read_lines
from osworld_gym.types import Action


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return hand_record(tmp_path / "run")


def exported(run: Path, kind: str, out: Path) -> Path:
    assert main(["export", str(run), "--format", kind, "--out", str(out)]) == 0
    return out


def trajectory(out: Path, episode: str) -> Any:
    return json.loads((out / "bepa" / episode / "agent" / "trajectory.json").read_text())


def test_every_trajectory_is_valid_and_injected_steps_are_copied_context(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = exported(run, "atif", tmp_path / "out")
    paths = sorted(out.rglob("trajectory.json"))
    read = {path.parents[1].name: atif.Trajectory.model_validate_json(path.read_text()) for path in paths}
    assert sorted(read) == ["0-0", "0-0-injected", "0-1", "1-1", "2-0", "2-0-injected"]
    copied = {name: {s.is_copied_context for s in found.steps if s.source == "agent"} for name, found in read.items()}
    assert copied == {name: {"injected" in name} for name in read}
    assert trajectory(out, "0-0-injected")["extra"]["provenance"] == PROVENANCE
    assert "6 episodes, 2 of them copied context, 2 images; 2 episodes without steps" in capsys.readouterr().out


def test_replayed_steps_are_copied_context(run: Path, tmp_path: Path) -> None:
    path = run / "bepa" / "episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line | {"replayed_steps": int(line["id"] == "1-1")}) + "\n" for line in lines))
    steps = trajectory(exported(run, "atif", tmp_path / "out"), "1-1")["steps"]
    assert [step.get("is_copied_context") for step in steps] == [None, True, False]


def test_the_steps_by_hand(run: Path, tmp_path: Path) -> None:
    """(10, 20) in thousandths of a screen of 100 x 50 is (1, 1)."""
    found = trajectory(exported(run, "atif", tmp_path / "out"), "1-1")
    user, click, done = found["steps"]
    assert user["message"][0]["text"] == "Switch the lamp on."
    assert click["message"] == CLICK
    assert click["tool_calls"][0]["arguments"] == {"type": "click", "x": 1.0, "y": 1.0}
    assert click["metrics"] == {"completion_tokens": 2, "completion_token_ids": [0, 1], "logprobs": [-0.5, -2.0]}
    assert done["tool_calls"][0]["arguments"] == {"type": "done"}
    assert found["extra"]["advantage"] == 1.0
    image = tmp_path / "out" / "bepa" / "1-1" / "agent" / user["message"][1]["source"]["path"]
    with Image.open(image) as picture:
        assert picture.size == (100, 50)


def test_the_expert_reader_reads_it_back_without_loss(run: Path, tmp_path: Path) -> None:
    out = exported(run, "atif", tmp_path / "out")
    runs = {each.run.split("/")[1]: each for each in reader.scan(out)}
    success = runs["1-1"]
    assert (success.task_id, success.instruction, success.outcome) == ("lamp", "Switch the lamp on.", Outcome.success)
    assert [s.response for s in success.steps] == [CLICK, DONE]
    assert [s.actions for s in success.steps] == [(Action("click", start=(1.0, 1.0)),), (Action("finished"),)]
    screenshots = [each["screenshot"] for e in find_records(run)[0].lines() if e["id"] == "1-1" for each in e["steps"]]
    assert [path is not None and path.stem for path in success.pictures] == screenshots
    assert (success.inexact, runs["0-1"].outcome) == ((), Outcome.failure)
    assert "no agent step but those copied from another" in runs["0-0-injected"].skipped
    checked = check_sources([str(out)])
    assert checked.totals["outcomes"] == {"success": 3, "failure": 3, "crashed": 0, "no result": 0}
    assert (checked.totals["skipped"], checked.totals["usable"]["converted"]) == (2, 1)


def test_a_response_that_cannot_be_read_and_every_kind_of_action_come_back(run: Path, tmp_path: Path) -> None:
    texts = [
        "nonsense",
        "Action: scroll(start_box='(500,500)', direction='down')",
        "Action: drag(start_box='(0,0)', end_box='(1000,1000)')",
        "Action: type(content='a<b>\\n')",
        "Action: hotkey(key='ctrl c')",
    ]
    method = run / "bepa"
    write(method, "episodes.jsonl", [line(0, 0, [step(method, text, 1) for text in texts], reward=1.0)])
    (found,) = reader.scan(exported(run, "atif", tmp_path / "out"))
    assert [s.response for s in found.steps] == texts
    assert [s.actions for s in found.steps] == [
        (),
        (Action("scroll", start=(50.0, 25.0), direction="down"),),
        (Action("drag", start=(0.0, 0.0), end=(100.0, 50.0)),),
        (Action("type", content="a<b>\n"),),
        (Action("hotkey", key="ctrl c"),),
    ]
    assert [index for index, _ in found.inexact] == [0]
    atif.Trajectory.model_validate(trajectory(tmp_path / "out", "0-0"))


def test_arguments_of_other_kinds() -> None:
    fields = {"kind": "keydown", "start": None, "end": None, "key": "shift", "content": None, "direction": None}
    assert arguments(fields) == {"type": "keydown", "keys": "shift"}


def test_lines_have_everything_with_paths_of_images(run: Path, tmp_path: Path) -> None:
    out = exported(run, "jsonl", tmp_path / "out")
    lines = read_lines(out / "episodes.jsonl")
    assert [each["id"] for each in lines] == ["0-0", "0-0-injected", "0-1", "1-1", "2-0", "2-0-injected"]
    first = lines[1]["steps"][0]
    assert (first["text"], first["log_probs"], first["copied_context"]) == (CLICK, [-0.5, -2.0], True)
    assert (out / first["image"]).is_file()


def test_rows_of_a_data_set_have_the_same_columns(run: Path, tmp_path: Path) -> None:
    out = exported(run, "datasets", tmp_path / "out")
    rows = read_lines(out / "metadata.jsonl")
    assert len(rows) == 1 + 2 + 1 + 2 + 1 + 2
    assert len({tuple(row) for row in rows}) == 1
    assert all((out / row["file_name"]).is_file() for row in rows)
    assert json.loads(rows[1]["actions"])[0]["kind"] == "click"
    assert list(rows[0])[1:] == [name for name in COLUMNS if name != "image"]
    assert "  - name: tokens\n    sequence: int64\n" in (out / "README.md").read_text()


def test_missing_images_are_counted_and_left_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in run.rglob("*.png"):
        path.unlink()
    out = exported(run, "atif", tmp_path / "out")
    assert "9 steps have no image in the record" in capsys.readouterr().out
    found = trajectory(out, "1-1")
    atif.Trajectory.model_validate(found)
    assert found["steps"][1]["extra"]["problem"] == "the record has no screenshot to scale the points by"


def test_bad_input_is_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export", str(run), "--format", "atif", "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert main(command) != 0
    assert "exists and is not overwritten" in capsys.readouterr().err
    write(run / "bepa", "episodes.jsonl", [line(0, 0, [], whole=False)])
    assert main([*command[:-1], str(tmp_path / "other")]) == 2
    assert "no episode has its steps; train with record.every >= 1" in capsys.readouterr().err
    (run / "bepa" / "record.json").unlink()
    assert main([*command[:-1], str(tmp_path / "other")]) == 2
    assert "says how points are scaled, got version 1" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["../../../outside", "/outside", "..", "a/b", ""])
def test_an_id_that_is_no_name_of_a_folder_is_refused(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of somebody else could write into any folder."""
    write(run / "bepa", "episodes.jsonl", [line(0, 0, [step(run / "bepa", DONE, 1)], id=name)])
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", str(run), "--format", "atif", "--out", str(tmp_path / "out" / "deep")]) == 2
    assert "expected the id of an episode" in capsys.readouterr().err
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before and path.name != "out"] == []


def test_two_episodes_of_one_id_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(run / "bepa", "episodes.jsonl", [line(0, 0, [step(run / "bepa", DONE, 1)])] * 2)
    assert main(["export", str(run), "--format", "atif", "--out", str(tmp_path / "out")]) == 2
    assert "got 0-0 twice" in capsys.readouterr().err
