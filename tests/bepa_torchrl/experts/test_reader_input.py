"""What real folders have and a reader must tolerate: each run on its own, a bad one skipped with its reason."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from expert_fixtures import frame
from expert_logs import CLICK, OTHER, SCREEN, TASK, good, line, owl, plan, s2, write_run

from bepa_torchrl.experts import (
    READERS,
    TraceError,
    convert_trace,
    load_traces,
    plan_from_trace,
    raw_pairs,
    save_traces,
)
from bepa_torchrl.experts.readers.run import Run
from bepa_torchrl.experts.readers.run_folder import scan_runs
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action


def only(root: Path) -> Run:
    (run,) = scan_runs(root)
    return run


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        *[(text, "success") for text in ("1", "1.0", "1.0\n", " 1 \n", "True", "True\n")],
        *[(text, "failure") for text in ("0", "0.0\n", "False", "0.5")],
        *[(text, "no result") for text in ("", "\n", "good", "nan", "None", "[1]")],
    ],
)
def test_result(tmp_path: Path, text: str, outcome: str) -> None:
    write_run(tmp_path, good(), result=text)
    run = only(tmp_path)
    assert run.outcome == outcome
    assert bool(run.skipped) == (outcome == "no result")


def test_no_result_is_no_failure_and_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_run(tmp_path, good())
    write_run(tmp_path, good(), task=OTHER.id, result=None)
    with caplog.at_level(logging.WARNING):
        assert [trace.task_id for trace in READERS["auto"](tmp_path, [TASK, OTHER])] == [TASK.id]
    assert "1 of 2 runs cannot be used: 1 × no result.txt (interrupted)" in caplog.text
    with pytest.raises(TraceError, match=r"1 of 1 runs cannot be used: 1 × no result.txt .*experts check auto:"):
        READERS["auto"](tmp_path, [OTHER])


@pytest.mark.parametrize("error", ["Time limit exceeded in os/x", "os/x - connection lost"])
def test_a_crashed_run_is_no_failed_run(tmp_path: Path, error: str) -> None:
    write_run(tmp_path, [*good()[:1], {"Error": error}], result=None)
    run = only(tmp_path)
    assert (run.outcome, run.skipped, len(run.steps)) == ("crashed", f"crashed: {error}", 1)


def test_a_failed_step_of_mobileagent_leaves_no_result(tmp_path: Path) -> None:
    lines = [line(1, CLICK, step_status=True, info=...), line(2, None, step_status=False, info=..., reward=None)]
    run_folder = write_run(tmp_path, lines, result=None)
    (run_folder / lines[1]["screenshot_file"]).unlink()
    run = only(tmp_path)
    assert (run.family, run.outcome, run.skipped) == ("mobileagent_v3", "no result", "no result.txt (a step failed)")


def test_without_a_first_screenshot_a_run_serves_for_plans(tmp_path: Path) -> None:
    write_run(tmp_path, good(), first=None)
    run = only(tmp_path)
    assert run.usable == ("plan",)
    assert run.problems == ("no first screenshot (step_0*.png): no images of step 1",)
    trace = run.trace("Press OK")
    assert trace.screenshots == (b"", frame(1, SCREEN))
    assert trace.screen_size == SCREEN
    assert plan_from_trace(trace) == "1. Click the OK button"
    for use in (convert_trace, raw_pairs):
        with pytest.raises(TraceError, match="no screenshot before step 1; such a trace serves for plans only"):
            use(trace)
    save_traces([trace], tmp_path / "saved")
    assert load_traces(tmp_path / "saved") == [trace]


def test_the_first_screenshot_may_be_named_by_a_note(tmp_path: Path) -> None:
    run_folder = write_run(tmp_path, [{"instruction": "x", "initial_state": "initial_state.png"}, *good()], first=None)
    (run_folder / "initial_state.png").write_bytes(frame(7, SCREEN))
    (run,) = scan_runs(tmp_path)
    assert run.family == "agent_s2"
    assert run.pictures[0] == run_folder / "initial_state.png"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not a readable screenshot (not a PNG"),
        (frame(2, SCREEN)[:-5], "is not a readable screenshot (the PNG is cut off"),
        (b"\xff\xd8\xff\xe0 a JPEG", "is not a readable screenshot (not a PNG"),
        (frame(2, (640, 480)), "has 640x480 pixels, others 1920x1080"),
        (None, "is not a readable screenshot (No such file"),
    ],
)
def test_a_damaged_screenshot_is_a_missing_one(tmp_path: Path, content: bytes | None, problem: str) -> None:
    lines = [s2(1, CLICK), s2(2, CLICK), s2(3, "DONE", "agent.done()")]
    file = write_run(tmp_path, lines) / lines[1]["screenshot_file"]
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    run = only(tmp_path)
    assert [text.startswith(f"step 2: {file.name} {problem}") for text in run.problems] == [True]
    assert run.usable == ("plan",)
    assert [path is None for path in run.pictures] == [False, False, True]


@pytest.mark.parametrize("name", ["../step_1.png", "/dev/null", "..", "", 3, None, "a\0b"])
def test_a_screenshot_is_in_its_run_s_folder(tmp_path: Path, name: Any) -> None:
    write_run(tmp_path, [s2(1, CLICK, screenshot_file=name) | {"screenshot_file": name}])
    assert "expected the name of a screenshot in the run's folder" in only(tmp_path).problems[0]


def test_an_action_may_be_a_list_and_a_step_may_have_several_lines(tmp_path: Path) -> None:
    typed = "import pyautogui; pyautogui.write('a')"
    lines = [s2(1, CLICK), line(1, typed, response=s2(1, typed)["response"]), s2(2, [typed, "WAIT"]), s2(3, "DONE")]
    lines[1]["screenshot_file"] = "step_1_20250801@120009.png"
    run_folder = write_run(tmp_path, lines)
    run = only(tmp_path)
    click, text = Action("click", start=(960.0, 540.0)), Action("type", content="a")
    assert [step.actions for step in run.steps] == [(click, text), (text, Action("wait")), (Action("finished"),)]
    assert run.pictures[1] == run_folder / "step_1_20250801@120009.png"  # after the step's last line
    assert run.usable == ("plan", "converted", "raw")


def test_an_action_may_do_nothing(tmp_path: Path) -> None:
    write_run(tmp_path, [s2(1, ""), s2(2, CLICK), s2(3, "DONE", "agent.done()")])
    trace = only(tmp_path).trace()
    assert trace.faithful
    assert convert_trace(trace).dropped == ((0, "no_input"),)
    assert convert_trace(trace).faithful


def test_two_runs_in_one_file_are_two(tmp_path: Path) -> None:
    write_run(tmp_path, [s2(1, "import pyautogui; pyautogui.hotkey('alt', 'f4')"), s2(2, "FAIL"), *good()])
    first, second = scan_runs(tmp_path)
    assert first.skipped == "no result: a later run in the same log has replaced it"
    assert [run.run.rpartition("#")[2] for run in (first, second)] == ["1", "2"]
    assert second.usable == ("plan", "converted", "raw")
    (trace,) = READERS["auto"](tmp_path, [TASK])
    assert [step.pyautogui for step in trace.steps] == [CLICK, "DONE"]


def test_one_step_runs_in_one_file_are_told_apart(tmp_path: Path) -> None:
    write_run(tmp_path, [s2(1, "DONE"), s2(1, "DONE")])
    assert len(scan_runs(tmp_path)) == 2
    write_run(tmp_path / "other", [s2(1, CLICK), s2(1, CLICK, "agent.click('no')"), s2(2, "DONE")])
    assert [len(run.steps) for run in scan_runs(tmp_path / "other")] == [
        1,
        2,
    ]  # interrupted, then again: another answer


def test_a_second_run_may_begin_with_a_note(tmp_path: Path) -> None:
    """As a person's log does; the number of the first step then starts again after a line without one."""
    note = {"instruction": "Press OK", "initial_state": "step_0.png"}
    write_run(tmp_path, [note, s2(1, CLICK), s2(2, CLICK), note, s2(1, CLICK), s2(2, "DONE", "agent.done()")])
    first, second = scan_runs(tmp_path)
    assert [(len(run.steps), run.instruction) for run in (first, second)] == [(2, "Press OK")] * 2
    assert (first.outcome, second.outcome) == ("no result", "success")


def test_notes_in_a_run_and_at_its_end_begin_none(tmp_path: Path) -> None:
    write_run(tmp_path, [s2(1, CLICK), {"cost": 1}, s2(2, "DONE", "agent.done()"), {"cost": 2}])
    assert len(only(tmp_path).steps) == 2


def interrupted() -> list[dict[str, Any]]:
    """A run that ended in its third step, and another of the same task that was interrupted in its first."""
    done = [s2(number, CLICK) for number in (1, 2)]
    return [*done, s2(3, "DONE", "agent.done()"), s2(1, CLICK, screenshot_file="step_1_20250801@130001.png")]


def test_a_result_is_not_that_of_an_interrupted_run_after_it(tmp_path: Path) -> None:
    write_run(tmp_path, interrupted())
    first, second = scan_runs(tmp_path)
    assert (first.outcome, first.usable, len(first.steps)) == ("success", ("plan",), 3)
    assert [path is None for path in first.pictures] == [True, False, False]  # step_0.png is the second run's
    assert (second.outcome, second.usable) == ("no result", ())
    assert second.skipped == "no result: interrupted; result.txt is that of an earlier run in the same log"


def test_a_screenshot_that_a_later_run_has_replaced_is_a_missing_one(tmp_path: Path) -> None:
    lines = interrupted()
    write_run(tmp_path, [*lines[:3], s2(1, CLICK)])  # which has the name of the first run's
    first, _ = scan_runs(tmp_path)
    assert [path is None for path in first.pictures] == [True, True, False]
    assert "step 1: step_1_20250801@120001.png is a screenshot of a later run in the same log" in first.problems


@pytest.mark.parametrize(
    ("second", "args"),
    [
        ([s2(1, CLICK)], {"max_steps": 1}),  # the step limit ended it
        ([s2(1, CLICK), s2(2, CLICK), s2(3, CLICK)], None),  # it may have
        ([s2(1, "DONE", "agent.done()")], None),
    ],
)
def test_a_result_is_that_of_the_last_run_that_may_be_complete(
    tmp_path: Path, second: list[dict[str, Any]], args: dict[str, Any] | None
) -> None:
    write_run(tmp_path, [*interrupted()[:3], *second], args=args)
    assert [run.outcome for run in scan_runs(tmp_path)] == ["no result", "success"]


def test_a_crash_and_a_second_run_in_one_file(tmp_path: Path) -> None:
    write_run(tmp_path, [*good()[:1], {"Error": "lost"}, *good()])
    assert [run.outcome for run in scan_runs(tmp_path)] == ["crashed", "success"]


def test_several_passes_below_one_root_stay_apart(tmp_path: Path) -> None:
    for number in (1, 2):
        write_run(tmp_path / f"pass_{number}", good())
    traces = READERS["auto"](tmp_path, [TASK])
    assert [trace.run.split("/")[0] for trace in traces] == ["pass_1", "pass_2"]
    save_traces(traces, tmp_path / "saved")
    assert sorted(trace.run for trace in load_traces(tmp_path / "saved")) == [trace.run for trace in traces]


def test_a_task_s_folder_may_hold_the_passes(tmp_path: Path) -> None:
    write_run(tmp_path / TASK.id / "pass_1", good(), task="run")
    (trace,) = READERS["auto"](tmp_path, [TASK])
    assert trace.task_id == TASK.id


def test_the_source_may_be_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder = write_run(tmp_path, good())
    assert [(run.task_id, run.run) for run in scan_runs(run_folder)] == [(TASK.id, TASK.id)]
    monkeypatch.chdir(run_folder)
    assert [(run.task_id, run.run) for run in scan_runs(Path())] == [(TASK.id, TASK.id)]


def test_stamps_with_microseconds_and_ten_steps(tmp_path: Path) -> None:
    lines = [s2(n, CLICK, screenshot_file=f"step_{n}_20250801@1200{n:02d}123456.png") for n in range(1, 12)]
    run_folder = write_run(tmp_path, lines)
    pictures = only(tmp_path).pictures
    assert [path.name.split("_")[1] for path in pictures if path] == ["0.png", *map(str, range(1, 11))]
    assert only(tmp_path).final == run_folder / lines[10]["screenshot_file"]


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c"])
def test_lines_end_at_newlines_only(tmp_path: Path, mark: str) -> None:
    write_run(tmp_path, [s2(1, CLICK, f"agent.click('the{mark}button')"), s2(2, "DONE", "agent.done()")])
    assert len(only(tmp_path).steps) == 2


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([*good()[:1], json.dumps(good()[1])[:-9]], "traj.jsonl:2: not a JSON line, so the log was cut off"),
        (["[]\n"], "traj.jsonl:1: expected a JSON object, got list"),
        (["\n"], "the log has no step"),
        (["[" * 5000 + "\n"], "traj.jsonl:1: not a JSON line"),
        ([{"step_num": 1, "response": "x"}], "traj.jsonl:1: expected the key 'action', got response, step_num"),
        ([line(1, CLICK, response=3)], "no known family writes the keys"),
    ],
)
def test_a_damaged_log_is_skipped_by_name(tmp_path: Path, lines: list[Any], reason: str) -> None:
    write_run(tmp_path, lines, task=OTHER.id)
    write_run(tmp_path, good())
    skipped = next(run for run in scan_runs(tmp_path) if run.task_id == OTHER.id)
    assert reason in skipped.skipped
    assert [trace.task_id for trace in READERS["auto"](tmp_path, [TASK, OTHER])] == [TASK.id]


def test_bytes_that_are_no_text_are_skipped(tmp_path: Path) -> None:
    run_folder = write_run(tmp_path, good())
    (run_folder / "traj.jsonl").write_bytes(b'{"action": "\xff"}\n')
    assert "traj.jsonl:1: not a JSON line" in only(tmp_path).skipped


def test_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    run_folder = write_run(tmp_path, good())
    log = run_folder / "traj.jsonl"
    log.write_bytes(b"\xef\xbb\xbf" + log.read_bytes().replace(b"\n", b"\r\n"))
    assert only(tmp_path).skipped == ""


def test_files_without_permission_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root every file is readable, so the operating system's answer is given here."""
    run_folder = write_run(tmp_path, good())
    write_run(tmp_path, good(), task=OTHER.id)
    (tmp_path / "closed").mkdir()
    listed, opened = os.scandir, Path.open

    def scandir(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    def open_(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == run_folder / "traj.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(Path, "open", open_)
    reasons = [run.skipped for run in scan_runs(tmp_path) if run.skipped]
    assert sorted(reasons) == [
        "the folder is not readable (Permission denied)",
        "traj.jsonl: not a readable log (Permission denied)",
    ]


def test_texts_of_any_type_are_tolerated(tmp_path: Path) -> None:
    info = {"executor_plan": plan("agent.wait(1)"), "plan_code": None, "reflection": {"ok": True}, "subtask": ["a"]}
    lines = [line(1, CLICK, response=info), line(2, CLICK, response={"subtask": "x"}), s2(3, "DONE", "agent.done()")]
    write_run(tmp_path, lines, args=None)
    run = only(tmp_path)
    assert (run.steps[0].reflection, run.steps[0].subtask) == ('{"ok": true}', '["a"]')
    assert run.problems == ("no texts in 1 of 3 steps: plans tell their actions only",)


@pytest.mark.parametrize(
    "call",
    ["", "{", '{"arguments": 3}', '{"arguments": {"coordinate": [1]}}', '{"arguments": {"coordinate": [1, "x"]}}'],
)
def test_a_broken_tool_call_has_no_points(tmp_path: Path, call: str) -> None:
    text = f"<thinking>Look.</thinking><tool_call>{call}</tool_call>"
    write_run(tmp_path, [line(1, CLICK, response=text), owl(2, "DONE", {"action": "terminate"})])
    run = only(tmp_path)
    assert (run.family, run.skipped, run.usable) == ("gui_owl", "", ("plan", "converted", "raw"))


def test_settings_that_are_no_json_are_ignored(tmp_path: Path) -> None:
    run_folder = write_run(tmp_path, good(), args={})
    (run_folder.parents[1] / "args.json").write_text("{")
    assert only(tmp_path).family == "agent_s2"


def test_without_any_run_the_error_tells_the_layout(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no run of any of the 1 tasks \(0 other runs found\); name the folder"):
        READERS["auto"](tmp_path, [Task("else", "x", evaluator={})])
