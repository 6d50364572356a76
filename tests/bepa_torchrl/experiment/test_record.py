"""The run's record: episodes with their steps, each screenshot once, nothing overwritten, resumed lines replaced."""

from __future__ import annotations

import hashlib
import json
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from torchrl.record.loggers import CSVLogger

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.evaluation.success_rate import evaluate
from bepa_torchrl.experiment.run_record import RecordError, RunRecord, read_lines, rewind_logs
from bepa_torchrl.monitoring.curves import base_value, draw_curves, series
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.storage.json_lines import json_line
from bepa_torchrl.storage.record_format import OUTCOMES, image_path, record_version
from bepa_torchrl.testing import LampEnv, ScriptedPolicy, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import note_update
from osworld_gym.types import Verdict


def recorded(folder: Path) -> list[dict]:
    """Two iterations: task 0 succeeds in the first and is replaced in the second; task 1 breaks its desktop."""
    tasks = [lamp_task(0), lamp_task(1, infected=True), lamp_task(2)]
    policy = ScriptedPolicy(lambda key: key[2] == 0 and key[1] == 0 and key[3] == 0)
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(3)),
        policy,
        tasks,
        groups=3,
        group_size=2,
        retries=0,
        postproc=TraceReplacement(TaskTraceCache()),
    )
    record = RunRecord(folder)
    record.begin("seed: 1\n")
    for iteration, batch in zip((1, 2), collector, strict=False):
        assert collector.last is not None
        record.episodes(iteration, batch, collector.last.results)
        record.iteration({"iteration": iteration, "x": iteration / 2})
    return read_lines(folder / "episodes.jsonl")


def test_every_episode_is_there_with_its_steps(tmp_path: Path) -> None:
    lines = recorded(tmp_path)
    assert len(lines) == 2 * 3 * 2 + 1
    first = [line for line in lines if line["iteration"] == 1 and line["task_id"] == "lamp-0"]
    assert [(line["reward"], line["advantage"] > 0, line["trained"]) for line in first] == [
        (1.0, True, True),
        (0.0, False, True),
    ]
    assert [len(line["steps"]) for line in first] == [2, 1]
    step = first[0]["steps"][0]
    assert step["text"].startswith("Thought: press")
    assert step["log_probs"] == [-0.5] * 7
    assert len(step["tokens"]) == 7


def test_a_result_that_exhausted_the_evaluators_is_recorded_and_counted(tmp_path: Path) -> None:
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(2)),
        ScriptedPolicy(lambda _: True),
        [lamp_task(0)],
        groups=1,
        group_size=2,
        postproc=TraceReplacement(TaskTraceCache()),
    )
    batch = next(iter(collector))
    assert collector.last is not None
    verdict = Verdict(0.0, "compare_archive: it unpacks to more than 1000 bytes", exhausted=True)
    results = [replace(result, verdict=verdict) if result.job.slot else result for result in collector.last.results]
    RunRecord(tmp_path).episodes(1, batch, results)
    lines = read_lines(tmp_path / "episodes.jsonl")
    assert [(line["problem"], line["exhausted"]) for line in lines] == [(None, False), (verdict.problem, True)]
    assert replace(collector.last, results=tuple(results)).metrics()["exhausted"] == 1.0


def test_replaced_and_failed_episodes_are_distinguished(tmp_path: Path) -> None:
    second = [line for line in recorded(tmp_path) if line["iteration"] == 2]
    lamp = sorted((x["slot"], x["off_policy"], x["trained"]) for x in second if x["task_id"] == "lamp-0")
    assert lamp == [(0, False, False), (0, True, True), (1, False, True)]
    broken = [line for line in second if line["task_id"] == "lamp-1"]
    assert [(x["stop_reason"], x["failure"], x["reward"], x["steps"]) for x in broken] == [
        ("env_error", "setup_failed", None, [])
    ] * 2


def test_screenshots_are_kept_once_by_their_hash(tmp_path: Path) -> None:
    named = {step["screenshot"] for line in recorded(tmp_path) for step in line["steps"]}
    files = list((tmp_path / "images").rglob("*.png"))
    assert {path.stem for path in files} == named
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.stem for path in files)


def test_an_evaluation_that_is_reported_after_the_checkpoint_is_removed_and_reported_again(tmp_path: Path) -> None:
    """The checkpoint is of iteration 4; the evaluation of iteration 1 was reported at 2, that of 3 at 5."""
    record = RunRecord(tmp_path)
    record.begin("seed: 1\n")
    logger = CSVLogger("csv", str(tmp_path / "logs"))
    for iteration, reported_at in ((1, 2), (3, 5)):
        record.evaluation(iteration, reported_at, [{"task_id": "t"}])
        record.iteration({"iteration": iteration, "phase": "eval", "reported_at": reported_at, "eval/train": 0.5})
        logger.log_scalar("eval/train", 0.5, step=iteration)
    for iteration in (3, 4, 5):
        logger.log_scalar("rows", 1.0, step=iteration)
    record.rewind(4)
    assert record.evaluated() == {1}
    assert [line["iteration"] for line in read_lines(tmp_path / "evaluations.jsonl")] == [1]
    rewind_logs(tmp_path / "logs", 4, record.evaluated())
    steps = {
        path.name: [int(line.split(",")[0]) for line in path.read_text().splitlines()]
        for path in (tmp_path / "logs").rglob("*.csv")
    }
    assert steps == {"train.csv": [1], "rows.csv": [3, 4]}


def test_lines_of_a_log_that_a_power_failure_has_left_are_removed(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "csv" / "scalars" / "x.csv"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"1,0.5\n2,0.5\n" + bytes(9) + b"\n\n\xff,1\n3,0.5\n4,0.5\n5,0")
    rewind_logs(tmp_path / "logs", 3, set())
    assert log.read_text() == "1,0.5\n2,0.5\n3,0.5\n"


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    record = RunRecord(tmp_path)
    record.begin("seed: 1\n")
    with pytest.raises(
        RecordError, match="contains a run already; choose another name=, or continue it with resume=true"
    ):
        record.begin("seed: 2\n")
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n"


def test_lines_are_on_disk_before_a_checkpoint_that_is_newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr("bepa_torchrl.experiment.run_record.sync", lambda path: flushed.append(path.name))
    record = RunRecord(tmp_path)
    record.iteration({"iteration": 1})
    record.groups(1, [])
    record.sync()
    record.sync()  # nothing more was written
    record.iteration({"iteration": 2})
    record.sync()
    assert flushed == ["groups.jsonl", "iterations.jsonl", tmp_path.name, "iterations.jsonl", tmp_path.name]


def test_rewind_takes_back_what_a_resumed_run_writes_again(tmp_path: Path) -> None:
    recorded(tmp_path)
    RunRecord(tmp_path).rewind(1)
    assert [line["iteration"] for line in read_lines(tmp_path / "iterations.jsonl")] == [1]
    assert {line["iteration"] for line in read_lines(tmp_path / "episodes.jsonl")} == {1}


def test_rewind_reads_a_line_at_a_time(tmp_path: Path) -> None:
    path, text = tmp_path / "episodes.jsonl", "x" * 100_000
    path.write_text("".join(json_line({"iteration": i, "text": text}) for i in range(100)))
    tracemalloc.start()
    try:
        RunRecord(tmp_path).rewind(79)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(read_lines(path)) == 80
    assert most < 20 * len(text)


def test_a_truncated_last_line_is_skipped_and_any_other_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a":1}\n{"a":')
    assert read_lines(path) == [{"a": 1}]
    path.write_text('{"a":\n{"a":1}\n')
    with pytest.raises(RecordError, match="line 1 is damaged"):
        read_lines(path)


def test_series_averages_over_its_window() -> None:
    lines = [{"iteration": i, "x": float(i)} for i in range(4)] + [{"iteration": 4}]
    assert series(lines, "x", 2) == ([0, 1, 2, 3], [0.0, 0.5, 1.5, 2.5])


def test_the_base_policys_value_is_that_before_the_first_iteration() -> None:
    runs = [[{"iteration": 1, "eval/train": 0.7}], [{"iteration": 0, "eval/train": 0.5, "x": 1.0}]]
    assert base_value(runs, "eval/train") == 0.5
    assert base_value(runs, "eval/held_out") is None
    assert base_value(runs, "x") is None


def test_curves_are_drawn_from_the_record(tmp_path: Path) -> None:
    for name in ("bepa", "grpo"):
        record = RunRecord(tmp_path / name)
        record.begin("")
        for i in range(3):
            record.iteration({"iteration": i, "collect/success": 0.1 * i, "cache/tasks": 2.0, "eval/train": 0.5})
        end = {"iterations": 3, "success": {"sampled": {"train": 0.6}}}
        (tmp_path / name / "results.json").write_text(json.dumps(end))
    picture = draw_curves(tmp_path, ["bepa", "grpo"], title="t")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["curves.png"]


def test_outcomes_are_the_episodes_by_mode_and_a_second_evaluation_replaces_them(tmp_path: Path) -> None:
    record, vector = RunRecord(tmp_path / "grpo"), lamp_vector(2)
    tasks = [lamp_task(0), lamp_task(1, infected=True)]
    played: dict[str, list[EpisodeResult]] = {}
    found = evaluate(
        ScriptedPolicy(lambda _: True), vector, tasks, episodes=2, retries=0, keep=partial(played.__setitem__, "greedy")
    )
    record.outcomes({"sampled": played["greedy"][:1]})
    record.outcomes(played)
    lines = read_lines(tmp_path / "grpo" / OUTCOMES)
    assert [(line["mode"], line["task_id"], line["slot"]) for line in lines] == [
        ("greedy", task.id, slot) for task in tasks for slot in (0, 1)
    ]
    assert [line["reward"] for line in lines[2:]] == [None, None]  # the desktop failed
    assert [line["failure"] for line in lines[2:]] == ["setup_failed", "setup_failed"]
    assert sum(line["reward"] for line in lines[:2]) == found.counts[tasks[0].id][0]
    assert "iteration" not in lines[0]
    shown = lines[0]["steps"][0]["screenshot"]
    assert hashlib.sha256(image_path(tmp_path / "grpo", shown).read_bytes()).hexdigest() == shown


def test_an_iteration_that_is_not_recorded_whole_keeps_what_was_injected_and_replaced(tmp_path: Path) -> None:
    """Task 0 succeeds in the first iteration; in the second all fail, and a copy of its success is injected."""
    policy = ScriptedPolicy(lambda key: key[1] == 0 and key[3] == 0)
    replacement = TraceReplacement(TaskTraceCache())
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(2)), policy, [lamp_task(0)], groups=1, group_size=2, postproc=replacement
    )
    record = RunRecord(tmp_path)
    record.begin("seed: 1\n")
    for iteration, batch in zip((1, 2, 3), collector, strict=False):
        assert collector.last is not None
        note_update(batch, iteration)
        record.episodes(iteration, batch, collector.last.results, whole=False)
        record.groups(iteration, replacement.reports)
    lines = read_lines(tmp_path / "episodes.jsonl")
    assert [(x["id"], x["whole"], bool(x["steps"]), x["updates"], x["age"]) for x in lines] == [
        ("0-0", True, True, [1], 0),  # the first success
        ("0-1", True, True, [1], 0),  # the first failure
        ("1-0-injected", True, True, [2], 1),
        ("1-0", True, True, [], None),  # replaced
        ("1-1", False, False, [2], 1),
        ("2-0-injected", True, True, [3], 2),
        ("2-0", True, True, [], None),
        ("2-1", False, False, [3], 2),
    ]
    assert {x["id"]: x["copied_from"] for x in lines if x["off_policy"]} == dict.fromkeys(
        ("1-0-injected", "2-0-injected"), "0-0"
    )
    assert [x["id"] for x in lines if x["replaced"]] == ["1-0", "2-0"]
    assert [(x["iteration"], x["refreshed"]) for x in read_lines(tmp_path / "groups.jsonl")] == [
        (1, True), (2, False), (3, False)
    ]  # fmt: skip
    record.rewind(1)
    assert [x["id"] for x in read_lines(tmp_path / "episodes.jsonl")] == ["0-0", "0-1"]
    assert record_version(tmp_path) == 2
