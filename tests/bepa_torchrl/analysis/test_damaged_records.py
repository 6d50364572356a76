"""Damaged fields of a run's files: every command that reads them ends with one line that names file and field."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hand_record import hand_record

from bepa_torchrl.cli import main

METRICS: dict[str, Any] = {
    "phase": "rl",
    "seconds_collect": 1.0,
    "groups": 2.0,
    "collect/success": 0.5,
    "collect/failed_died": 1.0,
    "total/seconds": 4.0,
    "total/episodes": 8.0,
    "total/optimizer_steps": 1.0,
}
SETTINGS = "algo:\n  name: bepa\ntrain:\n  iterations: 3\nenv:\n  suite: sim\nexpert:\n  plan_source: raw\n"
RESULTS = {
    "settings": {"iterations": 3},
    "success": {"sampled": {"train": 0.5}},
    "counts": {"greedy": {"lamp": [1, 2]}},
}
GONE = object()
READERS = {
    "status": ["status"],
    "why": ["why", "--update", "1"],
    "trace": ["why", "--trace", "lamp"],
    "export": ["export", "--format", "jsonl", "--out"],
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = hand_record(tmp_path / "run")
    lines = [METRICS | {"iteration": number, "total/seconds": 4.0 * number} for number in (1, 2)]
    (folder / "bepa" / "iterations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "bepa" / "config.yaml").write_text(SETTINGS)
    (folder / "bepa" / "results.json").write_text(json.dumps(RESULTS))
    return folder


def read(reader: str, run: Path) -> int:
    command, *rest = READERS[reader]
    return main([command, str(run), *rest, *([str(run.parent / "out")] if rest[-1:] == ["--out"] else [])])


def changed(data: Any, path: tuple[str | int, ...], value: Any) -> Any:
    data = deepcopy(data)
    *above, last = path
    part = data
    for name in above:
        part = part[name]
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    return data


EPISODE = ("bepa/episodes.jsonl", "line 2", ("trace", "why", "export"))
METRIC = ("bepa/iterations.jsonl", "line 2", ("status",))


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        *((EPISODE, ("id",), value) for value in (GONE, None, [1])),
        *((EPISODE, ("iteration",), value) for value in (GONE, None, -1, True, 2.5, 10**40)),
        *((EPISODE, ("reward",), value) for value in (GONE, "1", -1, 5, float("nan"))),
        *((EPISODE, ("advantage",), value) for value in (GONE, [1], float("inf"))),
        *((EPISODE, ("updates",), value) for value in (GONE, "1", [None], 1)),
        *((EPISODE, ("source",), value) for value in (GONE, None, "nobody", [1])),
        *((EPISODE, ("off_policy",), value) for value in (GONE, None, 1, "no")),
        *((EPISODE, ("provenance",), value) for value in (GONE, "x", [1], {})),
        *((EPISODE, ("provenance", "attempt"), value) for value in (GONE, None, "2", [2])),
        *((EPISODE, ("steps",), value) for value in (GONE, None, [1], {})),
        *((EPISODE, ("steps", 0, "tokens"), value) for value in (GONE, "ab", [1.5], [-1])),
        *((EPISODE, ("steps", 0, "log_probs"), value) for value in (GONE, "ab", ["x"], [float("nan")] * 2, [-1.0])),
        *((EPISODE, ("steps", 0, "screenshot"), value) for value in (GONE, None, 3)),
        *((METRIC, ("iteration",), value) for value in (GONE, None, "2", -1, 10**40)),
        *((METRIC, ("phase",), value) for value in (GONE, None, 1)),
        *((METRIC, ("collect/success",), value) for value in ("x", [1], 50.0, -0.5)),
        *((METRIC, ("total/seconds",), value) for value in (GONE, None, "4", -4.0, float("nan"))),
        *((METRIC, ("collect/failed_died",), value) for value in ("1", -1.0, float("inf"), {})),
        (("bepa/groups.jsonl", "line 2", ("trace",)), ("refreshed",), "yes"),
        (("bepa/groups.jsonl", "line 2", ("trace",)), ("task_id",), GONE),
        (("bepa/results.json", "", ("status",)), ("settings", "iterations"), "3"),
        (("bepa/results.json", "", ("status",)), ("settings",), [3]),
        (("bepa/record.json", "", ("why", "trace", "export")), ("version",), 2.5),
        (("bepa/record.json", "", ("export",)), ("image_scaling", "factor"), -28),
        (("bepa/record.json", "", ("export",)), ("action_text",), "nobody"),
        (("prepared/manifest.json", "", ("trace",)), ("provenance", "self_rolled"), ["lamp"]),
        (("prepared/manifest.json", "", ("trace",)), ("provenance", "self_rolled", "lamp", "expert"), GONE),
    ],
)
def test_a_damaged_field_is_named(
    run: Path, file: tuple[str, str, tuple[str, ...]], path: tuple[str | int, ...], value: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    name, where, readers = file
    target = run / name
    if target.suffix == ".jsonl":
        lines = [json.loads(line) for line in target.read_text().splitlines()]
        lines[1] = changed(lines[1], path, value)
        target.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        target.write_text(json.dumps(changed(json.loads(target.read_text()), path, value)))
    for reader in readers:
        assert read(reader, run) == 2, reader
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{name}: {where}" in line
        assert str(path[-1]) in line


BROKEN: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: len(text) // 2],
    "nested": lambda text: "[" * 100_000 + "\n" + text,
    "a list": lambda text: f"[{text!r}]".replace("'", '"'),
}


@pytest.mark.parametrize("way", BROKEN)
@pytest.mark.parametrize(
    ("name", "readers"),
    [
        ("bepa/results.json", ("status",)),
        ("bepa/record.json", ("why", "export")),
        ("prepared/manifest.json", ("trace",)),
    ],
)
def test_a_broken_file_is_named(
    run: Path, name: str, readers: tuple[str, ...], way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_text(BROKEN[way]((run / name).read_text()))
    for reader in readers:
        assert read(reader, run) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert name in line


def test_lines_that_are_nested_without_end_are_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, reader in (("bepa/episodes.jsonl", "why"), ("bepa/iterations.jsonl", "status")):
        path = run / name
        path.write_text("[" * 100_000 + "\n" + path.read_text())
        assert read(reader, run) == 2
        assert f"{name}: line 1 is damaged" in capsys.readouterr().err


def test_metrics_that_were_not_measured_are_none(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "bepa" / "iterations.jsonl"
    line = METRICS | {"iteration": 3, "collect/success": None, "train/loss": float("nan"), "eval/train": float("nan")}
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    assert read("status", run) == 0
    assert "newest: " in capsys.readouterr().out
