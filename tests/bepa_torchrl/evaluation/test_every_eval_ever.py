"""Records of Every Eval Ever: valid by its own schema, and nothing without a result among the rows.

The schema is that of the package every-eval-ever 0.3.0 (MIT), which cannot be installed on Python 3.11.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from grounding_files import mmbench_l1, screenspot_v2
from jsonschema import Draft7Validator, ValidationError

from bepa_torchrl.cli import main
from bepa_torchrl.evaluation.card import make_card
from bepa_torchrl.evaluation.every_eval_ever import model_id, write_record
from bepa_torchrl.evaluation.outcomes import Outcome, Result
from bepa_torchrl.experiment.evaluation_samples import episode_samples

SCHEMAS = Path(__file__).parents[2] / "support" / "every_eval_ever"


def validated(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The record and the rows of a folder, which the schemas accept."""
    record, row = (
        Draft7Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
        for name in ("eval", "instance_level_eval")
    )
    found = json.loads((folder / "every_eval_ever.json").read_text())
    record.validate(found)
    link = found["detailed_evaluation_results"]
    text = (folder / link["file_path"]).read_bytes()
    assert hashlib.sha256(text).hexdigest() == link["checksum"]
    rows = [json.loads(line) for line in text.decode().splitlines()]
    assert len(rows) == link["total_rows"]
    for each in rows:
        row.validate(each)
        assert each["evaluation_id"] == found["evaluation_id"]
        with pytest.raises(ValidationError):
            row.validate({name: value for name, value in each.items() if name != "evaluation"})
    return found, rows


def test_an_evaluation_writes_a_valid_record(tmp_path: Path) -> None:
    """Two passes of three tasks: a row each, with the responses as messages."""
    out = tmp_path / "out"
    settings = ["suite=sim", "env.train_limit=3", "env.desktops=3", "threads=1"]
    assert main(["eval", *settings, "--passes", "2", "--card", "--out", str(out)]) == 0
    record, rows = validated(out)
    card = json.loads((out / "card.json").read_text())
    (result,) = record["evaluation_results"]
    assert (result["score_details"]["score"], record["model_info"]["id"]) == (card["score"], "local/tiny")
    assert result["score_details"]["uncertainty"]["num_samples"] == len(rows) == 6
    assert sum(row["evaluation"]["is_correct"] for row in rows) == sum(each["success"] for each in card["passes"])
    assert {row["metadata"]["pass"] for row in rows} == {"1", "2"}
    assert [message["role"] for message in rows[0]["messages"][:2]] == ["user", "assistant"]
    assert len(rows[0]["messages"]) == 1 + rows[0]["evaluation"]["num_turns"]
    assert main(["eval", *settings, "--passes", "2", "--card", "--out", str(out)]) == 0  # again: one file of rows
    assert len([*out.glob("data/**/*_samples.jsonl")]) == 1
    name = "sim-first-3-of-199"
    assert (result["evaluation_name"], result["source_data"]["dataset_name"]) == (name, name)
    assert result["source_data"]["additional_details"]["list"] == "the first 3 of 199 (env.train_limit=3)"
    assert "edition" not in (out / "card.md").read_text()


@pytest.mark.parametrize(
    ("suite", "write", "choices"), [("screenspot_v2", screenspot_v2, False), ("mmbench_gui_l1", mmbench_l1, True)]
)
def test_answers_are_rows_of_a_single_turn(tmp_path: Path, suite: str, write: Any, choices: bool) -> None:
    write(tmp_path / "data")
    out = tmp_path / "out"
    arguments = ["--data", str(tmp_path / "data"), "--card", "--out", str(out), "threads=1"]
    assert main(["eval", f"suite={suite}", *arguments]) == 0
    _, rows = validated(out)
    assert [row["interaction_type"] for row in rows] == ["single_turn"] * 3
    assert all((row["input"]["choices"] is not None) == choices for row in rows)


def test_no_result_is_no_row(tmp_path: Path) -> None:
    outcomes = [
        Outcome("a", "os", 0, Result.success, 1.0),
        Outcome("b", "os", 0, Result.failure, 0.5, stop="max_steps"),
        Outcome("c", "os", 0, Result.no_result, None, reason="the runner crashed"),
    ]
    card = make_card(outcomes, {"suite": "osworld_verified", "policy": "org/agent", "provider": "vm"})
    write_record(tmp_path, card, episode_samples(outcomes, tmp_path / "none.jsonl"), created=1_700_000_000)
    record, rows = validated(tmp_path)
    assert {row["sample_id"]: row["evaluation"]["score"] for row in rows} == {"a": 1.0, "b": 0.5}
    assert record["evaluation_id"] == "osworld_verified/org/agent/1700000000"
    assert '"tasks_without_result": 1' in record["evaluation_results"][0]["score_details"]["details"]["denominators"]


def test_without_a_score_there_is_no_record(tmp_path: Path) -> None:
    assert write_record(tmp_path, make_card([], {"suite": "sim"}), [], created=1) is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("tiny", "local/tiny"),
        ("ByteDance-Seed/UI-TARS-1.5-7B", "ByteDance-Seed/UI-TARS-1.5-7B"),
        ("/some/where/my model/", "local/my-model"),
        ("../..", "local/unknown"),
        (None, "local/unknown"),
    ],
)
def test_models_are_named_without_a_machines_path(policy: str | None, found: str) -> None:
    assert model_id(policy) == found
