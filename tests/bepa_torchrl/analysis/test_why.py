"""From an update to its rows and from a trace to its updates, on a record made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hand_record import PROVENANCE, hand_record, line, write

from bepa_torchrl.analysis.prepared import expert_files, prepared_provenance
from bepa_torchrl.analysis.records import MethodRecord, find_records
from bepa_torchrl.analysis.why import why_trace, why_update
from bepa_torchrl.cli import main
from bepa_torchrl.experts.plan import plan_hash
from bepa_torchrl.storage.json_lines import RecordError


@pytest.fixture
def record(tmp_path: Path) -> MethodRecord:
    (found,) = find_records(hand_record(tmp_path / "run"))
    return found


def test_an_update_has_every_row_with_its_source_and_what_it_replaced(record: MethodRecord) -> None:
    found = why_update(record, 1)
    assert [e.id for e in found.episodes] == ["0-0-injected", "0-1"]
    assert [e.id for e in found.replaced.values()] == ["0-0"]
    assert (found.iteration, found.episodes[0].provenance) == (1, PROVENANCE)
    assert list(found.lines()) == [
        "bepa, update 1 (iteration 1): 2 episodes of 1 groups, 3 steps, 1 injected",
        "  group 0, lamp: 0 of 2 rollouts succeeded",
        "    0-0-injected self_rolled: reward 1, advantage +1.000, version 0, 0 updates old",
        "      in place of 0-0 (reward 0, finished)",
        "      trace feedfacecafe0123 of the expert agent_s2 (agent_s2:/logs), self-rolled with plan 00112233aabbccdd, "
        "attempt 2",
        "    0-1 on_policy: reward 0, advantage -1.000, version 0, 0 updates old",
    ]


def test_an_episode_that_was_not_kept_whole_is_in_its_update(record: MethodRecord) -> None:
    assert [(e.id, e.whole, e.n_steps) for e in why_update(record, 2).episodes] == [("1-0", False, 1), ("1-1", True, 2)]


@pytest.mark.parametrize("name", ["feedfacecafe0123", "feedfa", "00112233", "lamp"])
def test_a_trace_is_found_by_its_hash_its_plan_and_its_task(record: MethodRecord, name: str) -> None:
    found = why_trace(record, name, prepared_provenance(record))
    assert [e.id for e in found.injections] == ["0-0-injected"]
    assert (found.updates, found.refreshes, [e.id for e in found.later]) == ([1], (2,), ["2-0-injected"])
    assert found.provenance == (PROVENANCE,)


def test_a_trace_names_its_file_and_the_run_of_the_log(record: MethodRecord) -> None:
    folder = record.folder.parent / "prepared" / "experts" / "traces" / "agent_s2"
    folder.mkdir(parents=True)
    for task, run in (("lamp", "chrome/lamp"), ("other", "")):
        (folder / f"{task}.json").write_text(json.dumps({"expert": "agent_s2", "task_id": task, "run": run}))
    found = why_trace(record, "feedfa", files=expert_files(record))
    assert [f.file for f in found.files] == ["prepared/experts/traces/agent_s2/lamp.json"]
    assert "  prepared/experts/traces/agent_s2/lamp.json, run chrome/lamp of the log" in list(found.lines())


def test_the_plan_of_a_self_rolled_trace_is_printed(record: MethodRecord, capsys: pytest.CaptureFixture[str]) -> None:
    """By the hash in its provenance, from the run's file of plans; plans of other traces are not."""
    plan, other = "1. Open sound\n2. Press mute", "1. Open another"
    digest = plan_hash(plan)
    text = (record.folder / "episodes.jsonl").read_text()
    (record.folder / "episodes.jsonl").write_text(text.replace(PROVENANCE["plan"], digest))
    lines = [json.dumps({"trace": name, "plan": each}) for name, each in (("a", plan), ("b", other))]
    (record.folder.parent / "prepared" / "plans.jsonl").write_text("".join(line + "\n" for line in lines))
    for asked, indent in (["--update", "1"], " " * 8), (["--trace", digest], " " * 4):
        assert main(["why", str(record.folder), *asked]) == 0
        shown = capsys.readouterr().out
        assert f"\n{indent}1. Open sound\n{indent}2. Press mute\n" in shown
        assert "another" not in shown
        assert main(["why", str(record.folder), *asked, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["methods"][0]["plans"] == {digest: plan}


def test_a_rollout_that_refreshed_the_cache_is_a_trace_too(record: MethodRecord) -> None:
    found = why_trace(record, "1-1")
    assert ([e.id for e in found.injections], found.updates) == (["2-0-injected"], [3])


def test_what_is_not_there_is_refused_by_name(record: MethodRecord) -> None:
    with pytest.raises(RecordError, match="no update 4; expected 1 to 3"):
        why_update(record, 4)
    with pytest.raises(RecordError, match=r"no trace 'zz'; expected the hash .* such as feedfacecafe0123"):
        why_trace(record, "zz")


def test_a_record_of_version_1_has_traces_but_no_updates(record: MethodRecord) -> None:
    (record.folder / "record.json").unlink()
    new = ("id", "copied_from", "replaced", "updates", "age", "n_steps", "whole")
    lines = [{k: v for k, v in each.items() if k not in new} for each in record.lines() if each["whole"]]
    write(record.folder, "episodes.jsonl", lines)
    (old,) = find_records(record.folder)
    with pytest.raises(RecordError, match="got version 1, which has none; use --trace"):
        why_update(old, 1)
    assert [e.id for e in why_trace(old, "feedfa").injections] == ["0-0-injected"]
    assert [e.id for e in old.episodes if e.replaced] == ["0-0", "2-0"]


def test_a_newer_record_is_refused(record: MethodRecord) -> None:
    (record.folder / "record.json").write_text('{"format": "bepa-record", "version": 3}')
    with pytest.raises(RecordError, match="version 1 to 2, got 'bepa-record' 3"):
        find_records(record.folder)


def test_a_running_record_is_read_without_its_incomplete_line(record: MethodRecord) -> None:
    with (record.folder / "episodes.jsonl").open("ab") as file:
        file.write('{"id":"3-0","task_id":"é'.encode()[:-1])
    assert len(record.episodes) == 8


def test_a_damaged_line_is_named(record: MethodRecord) -> None:
    path = record.folder / "episodes.jsonl"
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(RecordError, match="line 1: field 'id' is missing"):
        find_records(record.folder)[0].episodes  # noqa: B018


def test_text_with_line_separators_is_one_line(record: MethodRecord) -> None:
    text = "a\u2028b\x85c\x1b[31m"
    path = record.folder / "episodes.jsonl"
    path.write_text(json.dumps(line(9, 0, [], task_id=text), ensure_ascii=False) + "\n", encoding="utf-8")
    assert [e.task_id for e in record.episodes] == [text]


def test_the_command_prints_text_and_json(record: MethodRecord, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(record.folder.parent)
    assert main(["why", run, "--update", "1"]) == 0
    assert "0-0-injected self_rolled" in capsys.readouterr().out
    assert main(["why", run, "--trace", "feedfa", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["methods"]
    assert (found["updates"], found["injections"][0]["provenance"]) == ([1], PROVENANCE)
    assert main(["why", run, "--update", "7"]) == 2
    assert "no update 7" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["why", "--update", "1"], ["export", "--format", "jsonl", "--out", "out"]])
def test_a_run_without_a_complete_iteration_is_told_from_another_folder(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its preparation may take hours; the commands said that it is no run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "bepa").mkdir(parents=True)
    for folder in ("run", "run/bepa"):
        (tmp_path / folder / "config.yaml").write_text("{}")
        assert main([command[0], folder, *command[1:]]) == 2
        assert f"{folder}: expected a run that has a record, which begins with the first" in capsys.readouterr().err
    assert main([command[0], ".", *command[1:]]) == 2
    assert ".: expected the folder of one run, got a folder of runs; name one, such as run" in capsys.readouterr().err
    assert main(["status", "run/bepa"]) == 2
    assert "run/bepa: expected the folder of a run, with a folder per method; this is a method of run; name that" in (
        capsys.readouterr().err
    )


def test_control_characters_do_not_reach_the_terminal(record: MethodRecord, capsys: pytest.CaptureFixture[str]) -> None:
    write(record.folder, "episodes.jsonl", [line(0, 0, [], task_id="a\x1b[31m")])
    assert main(["why", str(record.folder), "--update", "1"]) == 0
    assert "a\\x1b[31m" in capsys.readouterr().out
