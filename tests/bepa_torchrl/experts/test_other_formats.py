"""Trajectories that are no run folders: AgentNet, ATIF, and our own traces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from expert_fixtures import frame, sound_trace
from expert_logs import SCREEN

from bepa_torchrl.experts import READERS, TraceError, convert_trace, load_traces, plan_from_trace, save_traces
from bepa_torchrl.experts.readers import agentnet, atif, records
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action

TASK = Task("tab-1", "Bring back the last tab", evaluator={"func": "x"})


def agentnet_line(task: str = "tab-1", **more: Any) -> dict[str, Any]:
    def value(code: str, action: str) -> dict[str, Any]:
        texts = {"observation": "Chrome is open.", "thought": "The menu helps.", "action": action, "code": code}
        return texts | {"last_step_correct": True, "last_step_redundant": False, "reflection": "Fine."}

    steps = [
        value("pyautogui.click(x=0.5, y=0.25)", "Click the menu."),
        value("pyautogui.write(message='tab')", "Type tab."),
        value("computer.terminate(status='success')", "Done."),
    ]
    traj = [{"index": i, "image": f"{i}.png", "value": step} for i, step in enumerate(steps)]
    base = {"task_id": task, "instruction": "Bring it back", "task_completed": True, "alignment_score": 9}
    return base | {"efficiency_score": 9, "task_difficulty": 2, "traj": traj} | more


def write_agentnet(root: Path, *lines: dict[str, Any], images: bool = True) -> None:
    root.mkdir(exist_ok=True)
    (root / "agentnet_ubuntu.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "images").mkdir()
    for i in range(3 if images else 0):
        (root / "images" / f"{i}.png").write_bytes(frame(i, SCREEN))


def test_agentnet(tmp_path: Path) -> None:
    write_agentnet(tmp_path, agentnet_line(), agentnet_line("tab-2", task_completed=False))
    run, failed = agentnet.scan(tmp_path)
    assert run.problems == ("success judged by a model, not verified",)
    assert (run.outcome, run.usable, failed.usable) == ("no result", ("plan", "converted", "raw"), ())
    (trace,) = READERS["auto"](tmp_path, [TASK])
    assert not trace.success  # never a reward
    assert [step.actions for step in trace.steps] == [
        (Action("click", start=(960.0, 270.0)),),
        (Action("type", content="tab"),),
        (Action("finished"),),
    ]
    assert trace.screenshots == tuple(frame(i, SCREEN) for i in range(3))
    assert trace.faithful
    first = trace.steps[0]
    assert (first.intent, first.reflection) == ("Click the menu", "Fine.")
    assert first.plan == "Chrome is open.\n\nThe menu helps."
    assert first.pyautogui == "import pyautogui\npyautogui.click(960, 270, button='left')"
    assert plan_from_trace(trace) == "1. Click the menu\n2. Type tab"


def test_agentnet_wheel_clicks_are_those_of_the_log(tmp_path: Path) -> None:
    """A scroll of UI-TARS's text is 5 clicks: one of 1 or 13 is not made into such."""
    line = agentnet_line()
    line["traj"][1]["value"]["code"] = "pyautogui.scroll(-13)"
    write_agentnet(tmp_path, line)
    (trace,) = READERS["auto"](tmp_path, [TASK])
    assert trace.steps[1].actions == (Action("scroll", direction="down", clicks=13),)
    assert trace.steps[1].pyautogui == "import pyautogui\npyautogui.scroll(-13)"


def test_agentnet_without_pictures_has_no_pixels(tmp_path: Path) -> None:
    write_agentnet(tmp_path, agentnet_line(), images=False)
    (run,) = agentnet.scan(tmp_path)
    assert run.inexact == ((0, "unknown screen size"),)
    assert "no images of 3 of 3 steps" in run.problems
    assert run.usable == ("plan",)


def test_agentnet_input(tmp_path: Path) -> None:
    code = {"value": {"code": "import os; os.system('x')"}, "image": "../../etc/x.png"}
    write_agentnet(tmp_path, agentnet_line(traj=[code]), agentnet_line(traj=[{"value": 3}]), agentnet_line(traj=[]))
    bad, broken, empty = agentnet.scan(tmp_path)
    assert bad.inexact == ((0, "bad_source"),)
    assert bad.pictures == (None,)
    assert "expected traj[] of objects with image and value" in broken.skipped
    assert empty.skipped == "the trajectory has no step"
    (tmp_path / "agentnet_ubuntu.jsonl").write_text(json.dumps(agentnet_line()) + "\n{")
    assert "agentnet_ubuntu.jsonl:2: not a JSON line" in agentnet.scan(tmp_path)[-1].skipped
    rest = "".join(json.dumps(agentnet_line(task)) + "\n" for task in ("tab-2", "tab-3"))
    (tmp_path / "agentnet_ubuntu.jsonl").write_text("{\n" + rest.replace("\n", "\n[]\n", 1))
    found = [(run.task_id, bool(run.skipped)) for run in agentnet.scan(tmp_path)]
    assert found == [("agentnet_ubuntu", True), ("tab-2", False), ("agentnet_ubuntu", True), ("tab-3", False)]
    (tmp_path / "agentnet_ubuntu.jsonl").write_text(json.dumps(agentnet_line()) + "\n{")
    (tmp_path / "other.jsonl").write_text('{"a": 1}\n')
    assert len(agentnet.scan(tmp_path)) == 2


def call(number: int, **arguments: Any) -> dict[str, Any]:
    absent = dict.fromkeys(("x", "y", "end_x", "end_y", "text", "keys", "button", "modifier"))
    return {"tool_call_id": f"c{number}", "function_name": "computer_action", "arguments": absent | arguments}


def image(name: str) -> dict[str, Any]:
    return {"type": "image", "source": {"media_type": "image/png", "path": name}}


def agent_step(number: int, picture: str, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    results = [{"source_call_id": f"c{number}", "content": [{"type": "text", "text": "ok"}, image(picture)]}]
    base = {"step_id": number, "source": "agent", "message": "I see it. Click the menu.", "tool_calls": list(calls)}
    return base | {"observation": {"results": results}} | more


def write_atif(root: Path, *steps: dict[str, Any], reward: str | None = "1", **more: Any) -> Path:
    trial = root / "tab-1__x7Qz"
    (trial / "agent").mkdir(parents=True)
    (trial / "verifier").mkdir()
    user = {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "Do it"}, image("0.png")]}
    agent = {"name": "desk", "version": "1"}
    data = {"schema_version": "ATIF-v1.8", "agent": agent, "steps": [user, *steps]} | more
    (trial / "agent" / "trajectory.json").write_text(json.dumps(data))
    for i in range(4):
        (trial / "agent" / f"{i}.png").write_bytes(frame(i, SCREEN))
    if reward is not None:
        (trial / "verifier" / "reward.txt").write_text(reward)
    return trial


def test_atif(tmp_path: Path) -> None:
    write_atif(
        tmp_path,
        agent_step(2, "1.png", call(2, type="click", x=960, y=540)),
        agent_step(4, "2.png", call(4, type="type", text="tab"), call(5, type="keypress", keys=["ctrl", "Return"])),
        agent_step(6, "3.png", call(6, type="done"), reasoning_content="It is done."),
    )
    (run,) = atif.scan(tmp_path)
    assert (run.family, run.task_id, run.outcome, run.usable) == (
        "atif",
        "tab-1",
        "success",
        ("plan", "converted", "raw"),
    )
    (trace,) = READERS["auto"](tmp_path, [TASK])
    assert [step.actions for step in trace.steps] == [
        (Action("click", start=(960.0, 540.0)),),
        (Action("type", content="tab"), Action("hotkey", key="ctrl enter")),
        (Action("finished"),),
    ]
    assert trace.screenshots == (frame(0, SCREEN), frame(1, SCREEN), frame(2, SCREEN))
    assert trace.final_screenshot == frame(3, SCREEN)
    assert trace.steps[0].intent == "Click the menu"
    assert trace.steps[2].plan == "It is done."
    assert convert_trace(trace).faithful
    assert run.instruction == "Do it"


def test_a_part_of_an_atif_run_is_not_all_of_it(tmp_path: Path) -> None:
    write_atif(
        tmp_path,
        agent_step(2, "1.png", call(2, type="click", x=1, y=1), is_copied_context=True),
        agent_step(3, "1.png", call(3, type="click", x=2, y=2), is_copied_context=True),
        agent_step(4, "2.png", call(4, type="click", x=960, y=540)),
        agent_step(5, "3.png", call(5, type="done")),
        continued_trajectory_ref="trajectory.2.json",
    )
    (run,) = atif.scan(tmp_path)
    assert run.problems == (
        "step 1: copied_context: 2 steps of another trajectory before it are left out",
        "step 2: continued: the steps after it are in trajectory.2.json",
    )
    assert run.usable == ("plan", "raw")
    trace = run.trace()
    assert [step.actions for step in trace.steps] == [(Action("click", start=(960.0, 540.0)),), (Action("finished"),)]
    assert not trace.faithful


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("ctrl+c", "ctrl c"),
        ("ctrl + c", "ctrl c"),
        ("+", "+"),
        ("ctrl++", "ctrl +"),
        (["ctrl", "+"], "ctrl +"),
        ([" "], None),
        ("", None),
        ([], None),
        ("ctrl+", None),
    ],
)
def test_atif_keys(tmp_path: Path, keys: Any, key: str | None) -> None:
    write_atif(tmp_path, agent_step(2, "1.png", call(2, type="key", keys=keys)))
    (run,) = atif.scan(tmp_path)
    assert run.steps[0].actions == (() if key is None else (Action("hotkey", key=key),))
    assert run.inexact == (((0, "not_convertible: key"),) if key is None else ())


@pytest.mark.parametrize(
    ("files", "extra", "outcome"),
    [
        ({"reward.txt": "0.5\n"}, {}, "failure"),
        ({"reward.json": '{"rewards": {"a": 1, "b": 1}}'}, {}, "success"),
        ({"reward.json": '{"rewards": {"a": 1, "b": 0}}'}, {}, "failure"),
        ({"reward.json": '{"reward": 1.0}'}, {}, "success"),
        ({"reward.json": '{"reward": 1.0}', "reward.txt": "0"}, {}, "success"),
        ({}, {"reward": 1, "task_id": "other"}, "success"),
        ({}, {}, "no result"),
        ({"reward.txt": "good"}, {}, "no result"),
    ],
)
def test_atif_outcomes(tmp_path: Path, files: dict[str, str], extra: dict[str, Any], outcome: str) -> None:
    trial = write_atif(tmp_path, agent_step(2, "1.png", call(2, type="wait")), reward=None, extra=extra)
    for name, text in files.items():
        (trial / "verifier" / name).write_text(text)
    (run,) = atif.scan(tmp_path)
    assert (run.outcome, bool(run.skipped)) == (outcome, outcome == "no result")
    assert run.task_id == extra.get("task_id", "tab-1")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"type": "scroll", "scroll_y": 3}, "not_convertible: scroll"),
        ({"type": "click", "x": 1, "y": 2, "modifier": "ctrl"}, "not_convertible: click with a modifier"),
        ({"type": "click", "x": 1, "y": 2, "button": "middle"}, "not_convertible: click with middle"),
        ({"type": "click", "x": 1}, "not_convertible: click"),
        ({"command": "ls"}, "not_convertible: no type"),
    ],
)
def test_atif_calls_without_an_exact_form_are_named(tmp_path: Path, arguments: dict[str, Any], reason: str) -> None:
    write_atif(tmp_path, agent_step(2, "1.png", call(2, **arguments)))
    (run,) = atif.scan(tmp_path)
    assert run.inexact == ((0, reason),)


@pytest.mark.parametrize(
    ("arguments", "actions"),
    [
        ({"type": "type", "text": "tab", "press_enter": True}, [Action("type", content="tab\n")]),
        ({"type": "keypress", "keys": ["ctrl", "shift", "t"]}, [Action("hotkey", key="ctrl shift t")]),
        ({"type": "keypress", "keys": ["ctrl+shift+t"]}, [Action("hotkey", key="ctrl shift t")]),
        ({"type": "key", "keys": ["Tab", "Return"]}, [Action("hotkey", key="tab"), Action("hotkey", key="enter")]),
        ({"type": "answer", "result": "42"}, [Action("finished")]),
        ({"type": "terminate"}, [Action("finished")]),
    ],
)
def test_atif_calls_are_what_harbors_desktop_performs(
    tmp_path: Path, arguments: dict[str, Any], actions: list[Action]
) -> None:
    write_atif(tmp_path, agent_step(2, "1.png", call(2, **arguments)))
    (run,) = atif.scan(tmp_path)
    assert (run.steps[0].actions, run.inexact) == (tuple(actions), ())


@pytest.mark.parametrize("alone", [False, True])
def test_atif_runs_that_mark_their_task_complete_are_converted(tmp_path: Path, alone: bool) -> None:
    """Harbor's desktop agent calls it beside the last action, twice, since it is asked whether it is sure."""
    mark = {"tool_call_id": "m", "function_name": "mark_task_complete", "arguments": {"result": None}}
    ends = [mark] if alone else [call(3, type="done"), mark]
    write_atif(
        tmp_path,
        agent_step(2, "1.png", call(2, type="click", x=960, y=540)),
        agent_step(3, "2.png", *ends),
        agent_step(4, "3.png", *ends),
    )
    (run,) = atif.scan(tmp_path)
    assert run.usable == ("plan", "converted", "raw")
    assert [step.actions for step in run.steps[1:]] == [(Action("finished"),)] * 2


def trial_result(trial: Path, **more: Any) -> None:
    result = {"task_name": "org/a-task__with-a-name-of-more-than-32-characters", "trial_name": trial.name}
    (trial / "result.json").write_text(json.dumps(result | more))


def test_what_lies_beside_an_atif_trajectory_is_no_run(tmp_path: Path) -> None:
    """Summaries by subagents, a simulated user, and the summary of the job."""
    ref = {"session_id": "s", "trajectory_path": "trajectory.summarization-1-summary.json"}
    observation = {"results": [{"subagent_trajectory_ref": [ref]}]}
    summary = {"step_id": 3, "source": "system", "message": "Summarized", "observation": observation}
    trial = write_atif(tmp_path, agent_step(2, "1.png", call(2, type="wait")), summary)
    agent = trial / "agent" / "trajectory.json"
    (trial / "user-agent").mkdir()
    other = {**json.loads(agent.read_text()), "agent": {"name": "other", "version": "1"}}
    made_for = {**other, "agent": {"name": "other", "version": "1", "extra": {"parent_session_id": "s"}}}
    for name, content in (
        ("agent/trajectory.summarization-1-summary.json", other),
        ("agent/trajectory.summarization-2-questions.json", made_for),
        ("user-agent/trajectory.json", other),
    ):
        (trial / name).write_text(json.dumps(content))
    job = {"id": "j", "n_total_trials": 1, "stats": {"n_completed_trials": 1}, "trial_results": []}
    (tmp_path / "result.json").write_text(json.dumps(job))
    assert [run.run for run in atif.scan(tmp_path)] == ["tab-1__x7Qz/agent/trajectory.json"]


def test_the_task_of_an_atif_run_is_that_of_its_trial(tmp_path: Path) -> None:
    """A folder's name has the first 32 characters of it, and an id."""
    trial = write_atif(tmp_path, agent_step(2, "1.png", call(2, type="wait")))
    trial = trial.rename(tmp_path / "a-task__with-a-name__x7Qz")
    assert atif.scan(tmp_path)[0].task_id == "a-task__with-a-name"
    trial_result(trial)
    assert atif.scan(tmp_path)[0].task_id == "a-task__with-a-name-of-more-than-32-characters"


def test_the_steps_of_a_task_of_harbors_are_told_apart(tmp_path: Path) -> None:
    trial = write_atif(tmp_path, agent_step(2, "1.png", call(2, type="wait")))
    for step, reward in (("first", "1"), ("second", "0")):
        shutil.copytree(trial / "agent", trial / "steps" / step / "agent")
        (trial / "steps" / step / "verifier").mkdir()
        (trial / "steps" / step / "verifier" / "reward.txt").write_text(reward)
    shutil.rmtree(trial / "agent")
    assert {run.task_id: run.outcome.value for run in atif.scan(tmp_path)} == {
        "tab-1/first": "success",
        "tab-1/second": "failure",
    }
    trial_result(trial, step_results=[{"step_name": "second", "verifier_result": {"rewards": {"reward": 1}}}])
    task = "a-task__with-a-name-of-more-than-32-characters"
    assert {run.task_id: run.outcome.value for run in atif.scan(tmp_path)} == {
        f"{task}/first": "success",
        f"{task}/second": "success",
    }


@pytest.mark.parametrize(
    ("more", "outcome", "skipped"),
    [
        ({"verifier_result": {"rewards": {"reward": 0.0}}}, "failure", "no trajectory"),
        ({"verifier_result": {"rewards": {"reward": 1}}}, "success", "no trajectory"),
        (
            {"exception_info": {"exception_type": "EnvironmentStartTimeoutError", "exception_message": "600 s"}},
            "crashed",
            "crashed: EnvironmentStartTimeoutError: 600 s",
        ),
        ({"verifier_result": None}, "no result", "no verifier/reward.txt"),
        ({"verifier_result": {"rewards": {"a": "x", "b": 1}}}, "no result", "the verifier's rewards are not numbers"),
    ],
)
def test_a_trial_without_a_trajectory_has_a_result(
    tmp_path: Path, more: dict[str, Any], outcome: str, skipped: str
) -> None:
    trial = tmp_path / "a-task__x7Qz"
    trial.mkdir()
    trial_result(trial, **more)
    (run,) = atif.scan(tmp_path)
    assert (run.outcome, run.run) == (outcome, "a-task__x7Qz")
    assert run.skipped.startswith(skipped)


def test_atif_input(tmp_path: Path) -> None:
    trial = write_atif(tmp_path, {"step_id": 2, "source": "agent", "message": "x", "tool_calls": [{}]})
    assert "not a valid ATIF-v1.8 trajectory (KeyError: " in atif.scan(tmp_path)[0].skipped
    (trial / "agent" / "trajectory.json").write_text('{"schema_version": "other"}')
    assert atif.scan(tmp_path) == []
    (trial / "agent" / "trajectory.json").write_text("{")
    assert "not a readable JSON file" in atif.scan(tmp_path)[0].skipped


def test_a_part_of_an_atif_run_that_cannot_be_read_costs_this_run_only(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_atif(tmp_path / name, agent_step(2, "1.png", call(2, type="wait")))
    (reward,) = (tmp_path / "a").rglob("reward.txt")
    reward.unlink()
    reward.symlink_to("/proc/self/mem")  # a regular file whose reading fails
    next((tmp_path / "b").rglob("*trajectory*.json")).write_text("[" * 100_000)
    runs = {run.run.split("/")[0]: run for run in atif.scan(tmp_path)}
    assert "reward.txt is not readable" in runs["a"].skipped
    assert "not a readable JSON file" in runs["b"].skipped
    assert runs["c"].outcome.value == "success"


def test_atif_pictures_are_those_of_the_given_folder(tmp_path: Path) -> None:
    """A log may name any file of the machine, which would be shown, and exported with the traces."""
    (tmp_path / "private.png").write_bytes(frame(7, SCREEN))
    trial = write_atif(tmp_path / "logs", *(agent_step(n, "1.png", call(n, type="wait")) for n in (2, 3, 4, 5)))
    (trial / "agent" / "link.png").symlink_to(tmp_path / "private.png")
    (tmp_path / "logs" / "images").mkdir()  # which several trials share, as in our own export
    (tmp_path / "logs" / "images" / "5.png").write_bytes(frame(5, SCREEN))
    (path,) = trial.rglob("trajectory.json")
    data = json.loads(path.read_text())
    names = (str(tmp_path / "private.png"), "../../../private.png", "link.png", "../../images/5.png")
    for step, name in zip(data["steps"], names, strict=False):
        if step["source"] == "user":
            step["message"] = [image(name)]
        else:
            step["observation"]["results"] = [{"content": [image(name)]}]
    path.write_text(json.dumps(data))
    (run,) = atif.scan(tmp_path / "logs")
    assert [picture and picture.name for picture in run.pictures] == [None, None, None, "5.png"]


def test_a_point_of_no_numbers_costs_this_run_only(tmp_path: Path) -> None:
    action = {"kind": "click", "start": [], "end": None, "key": None, "content": None, "direction": None}
    write_atif(tmp_path, {"step_id": 2, "source": "agent", "message": "x", "extra": {"actions": [action]}})
    assert "not a valid ATIF-v1.8 trajectory (ValueError: " in atif.scan(tmp_path)[0].skipped


def test_halves_of_characters_are_left_out(tmp_path: Path) -> None:
    """A program that cuts a text by its UTF-16 units leaves one, which no file and no tokenizer takes."""
    half = '{"name": "computer_use", "arguments": {"text": "\\ud83d"}}'
    step = {"step_num": 1, "action": "pyautogui.write('\\ud83d')", "response": f"\ud83d<tool_call>{half}</tool_call>"}
    folder = tmp_path / "logs" / "tab-1"
    folder.mkdir(parents=True)
    (folder / "traj.jsonl").write_text(json.dumps(step | {"whole": "\U0001f600"}))
    (folder / "result.txt").write_text("1.0")
    for reader in ("qwen3_vl", "auto"):
        (trace,) = READERS[reader](tmp_path / "logs", [Task("tab-1", "x", evaluator={"func": "x"})])
        save_traces([trace], tmp_path / reader)
        assert load_traces(tmp_path / reader)[0].steps == trace.steps
    assert trace.steps[0].actions[0].content == "\ufffd"


def test_our_own_traces(tmp_path: Path) -> None:
    trace = sound_trace()
    save_traces([trace], tmp_path / "recorded")
    (run,) = records.scan(tmp_path)
    assert (run.family, run.task_id, run.outcome, run.env_seed) == ("agent_s2", trace.task_id, "success", 5)
    assert run.usable == ("plan", "raw")  # one of its steps is the framework's memory
    task = Task(trace.task_id, trace.instruction, evaluator={"func": "x"})
    (again,) = READERS["auto"](tmp_path, [task])
    assert again.steps == trace.steps
    assert again.screenshots == trace.screenshots


def test_a_damaged_trace_of_ours_is_skipped(tmp_path: Path) -> None:
    (path,) = save_traces([sound_trace()], tmp_path)
    data = json.loads(path.read_text())
    (tmp_path / "images" / f"{data['screenshots'][0]}.png").write_bytes(b"")
    (run,) = records.scan(tmp_path)
    assert run.pictures[0] is None
    assert run.usable == ("plan",)
    path.write_text(json.dumps(data | {"schema": "other"}))
    assert "expected schema" in records.scan(tmp_path)[0].skipped
    path.write_text(json.dumps({"schema": data["schema"]}))
    assert "incomplete trace" in records.scan(tmp_path)[0].skipped
    with pytest.raises(TraceError, match="incomplete trace"):
        load_traces(tmp_path)
