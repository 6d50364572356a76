"""Each runner family on a run written key for key: recognised, texts, executed actions, faithfulness, pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from expert_fixtures import frame
from expert_logs import CLICK, OTHER, PYPERCLIP, SCREEN, TASK, good, line, owl, plan, s2, write_run

from bepa_torchrl.experts import READERS, convert_trace, plan_from_trace, raw_pairs
from bepa_torchrl.experts.readers.families import BY_NAME, FAMILIES
from bepa_torchrl.experts.readers.run_folder import scan_runs
from osworld_gym.types import Action

CENTRE = Action("click", start=(960.0, 540.0))
ALL = ("plan", "converted", "raw")


def s3(number: int, action: str, call: str) -> dict[str, Any]:
    texts = {"plan": plan(call), "plan_code": call, "exec_code": action, "reflection": "Good."}
    return line(number, action, **texts, reflection_thoughts="", code_agent_output=None)


def s2_5(number: int, action: str, call: str) -> dict[str, Any]:
    texts = {"full_plan": plan(call), "executor_plan": plan(call), "plan_thoughts": "", "plan_code": call}
    return line(number, action, **texts, reflection="Good.", reflection_thoughts="")


def claude(number: int, action: str | None, text: str) -> dict[str, Any]:
    if action is None:
        return line(number, {"action_type": "DONE", "raw_response": "[]"}, response=text)
    given = {"action": "left_click", "coordinate": [640, 360]}
    tool = {"name": "computer", "input": given, "id": "toolu_1", "action_type": "tool_use", "command": action}
    return line(number, tool | {"raw_response": "[]"}, response=text)


def openai(number: int, action: str, **more: Any) -> dict[str, Any]:
    return line(number, {"action_space": "pyautogui", "action": action, "call_id": "call_1"}, **more)


UI_TARS = "Thought: The dialog is open. I click OK.\nAction: click(start_box='(966,546)')"
DOUBAO = "Thought: 对话框已打开。点击确定。\nAction: {}"
OPENCUA = (
    "## Thought:\nThe dialog is open.\n\n## Action:\nClick OK.\n\n## Code:\n```python\npyautogui.click(x={}, y={})\n```"
)
ENDED = "## Action:\nEnd.\n\n## Code:\n```python\ncomputer.terminate(status='success')\n```"
OWL_ENDED = {"action": "terminate", "status": "success"}


@dataclass(frozen=True)
class Log:
    """A run of two steps: a click in the centre, the end. And what is to be read."""

    family: str
    lines: Callable[[], list[dict[str, Any]]]
    intent: str = "Click the OK button"
    plan: str | None = None
    call: str | None = None
    reflection: str | None = None
    response: bool = True
    args: dict[str, Any] = field(default_factory=dict)
    first: str | None = "step_0.png"
    usable: tuple[str, ...] = ALL


LOGS = {
    "S2, info as the response": Log(
        "agent_s2", good, call="agent.click('OK', 1, 'left')", plan=plan("agent.click('OK', 1, 'left')"), response=False
    ),
    "S2, its own runner": Log(
        "agent_s2",
        lambda: [line(1, CLICK), line(2, "DONE")],
        intent="Click at (960, 540)",
        plan="",
        call="",
        response=False,
        first=None,
        usable=("plan",),
    ),
    "S2.5": Log(
        "agent_s2_5",
        lambda: [s2_5(1, CLICK, "agent.click('OK')"), s2_5(2, "DONE", "agent.done()")],
        call="agent.click('OK')",
        reflection="Good.",
        response=False,
    ),
    "S3": Log(
        "agent_s3",
        lambda: [s3(1, CLICK, "agent.click('OK')"), s3(2, "DONE", "agent.done()")],
        call="agent.click('OK')",
        reflection="Good.",
        response=False,
    ),
    "UI-TARS-1.5": Log(
        "ui_tars",
        lambda: [line(1, CLICK, response=UI_TARS), line(2, "DONE", response="Thought: Done.\nAction: finished()")],
        intent="I click OK",
        plan="The dialog is open. I click OK.",
        call="click(start_box='(966,546)')",
    ),
    "UI-TARS, thousandths": Log(
        "ui_tars",
        lambda: [
            line(1, CLICK, response=DOUBAO.format("click(point='<point>500 500</point>')")),
            line(2, "DONE", response=DOUBAO.format("finished(content='')")),
        ],
        intent="点击确定。",
        plan="对话框已打开。点击确定。",
        call="click(point='<point>500 500</point>')",
    ),
    "OpenCUA, pixels of the resized picture": Log(
        "opencua",
        lambda: [
            line(1, CLICK, response=OPENCUA.format(966, 546), natural_language_action="Click the OK button."),
            line(2, "DONE", response=ENDED, natural_language_action="End."),
        ],
        plan="The dialog is open.",
        call="pyautogui.click(x=966, y=546)",
    ),
    "OpenCUA, fractions": Log(
        "opencua",
        lambda: [line(1, CLICK, response=OPENCUA.format(0.5, 0.5)), line(2, "DONE", response=ENDED)],
        intent="Click OK",
    ),
    "Kimi": Log(
        "kimi",
        lambda: [
            line(1, CLICK, response=OPENCUA.format(0.5, 0.5), natural_language_action="Click the OK button."),
            line(2, "DONE", response=ENDED, natural_language_action="End."),
        ],
        args={"model": "kimi-k2.5"},
    ),
    "EvoCUA": Log(
        "evocua",
        lambda: [
            owl(1, CLICK, {"action": "left_click", "coordinate": [500, 500]}, form="action"),
            owl(2, "DONE", OWL_ENDED, form="action"),
        ],
        args={"model": "EvoCUA-S2"},
    ),
    "Claude": Log(
        "claude",
        lambda: [claude(1, CLICK, "The dialog is open. I click the OK button."), claude(2, None, "It is done.")],
        intent="I click the OK button",
        plan="The dialog is open. I click the OK button.",
        call='{"action": "left_click", "coordinate": [640, 360]}',
    ),
    "OpenAI, older": Log(
        "openai_cua",
        lambda: [openai(1, CLICK), openai(2, "DONE")],
        intent="Click at (960, 540)",
        response=False,
        usable=("plan", "converted"),
    ),
    "OpenAI, newer": Log(
        "openai_cua",
        lambda: [
            openai(n, source, response="I click OK.", state_correct=True, model_usage={}, messages=[])
            for n, source in ((1, CLICK), (2, "DONE"))
        ],
        intent="I click OK",
    ),
    "o3": Log(
        "generic",
        lambda: [
            line(1, CLICK, response="I click OK.\n```python\nimport pyautogui\npyautogui.click(960, 540)\n```"),
            line(2, "DONE", response="```\nDONE\n```"),
        ],
        intent="I click OK",
    ),
    "Qwen3-VL": Log(
        "qwen3_vl",
        lambda: [
            owl(1, CLICK, {"action": "left_click", "coordinate": [500, 500]}, form="action"),
            owl(2, "DONE", OWL_ENDED, form="action"),
        ],
        args={"model": "qwen3-vl-8b"},
        plan="Click the OK button.",
    ),
    "mobileagent_v3": Log(
        "mobileagent_v3",
        lambda: [line(n, a, info=..., step_status=True) for n, a in ((1, CLICK), (2, "DONE"))],
        intent="Click at (960, 540)",
        response=False,
        first="step_0_20250801@120000.png",
        usable=("plan", "converted"),
    ),
    "GUI-Owl 1.0": Log(
        "gui_owl",
        lambda: [owl(1, CLICK, {"action": "click", "coordinate": [966, 546]}), owl(2, "DONE", OWL_ENDED)],
        intent="Click OK",
        plan="The dialog is open.",
        call='{"action": "click", "coordinate": [966, 546]}',
    ),
    "GUI-Owl 1.5": Log(
        "gui_owl_1_5",
        lambda: [
            owl(1, CLICK, {"action": "left_click", "coordinate": [500, 500]}, form="action"),
            owl(2, "DONE", OWL_ENDED, form="action"),
        ],
    ),
    "OS-Symphony": Log(
        "os_symphony",
        lambda: [
            s2(1, CLICK, instruction="Press OK", reward=..., action_timestamp=...),
            s2(2, "DONE", "agent.done()", instruction="Press OK", reward=..., action_timestamp=...),
        ],
        response=False,
        first=None,
    ),
}


def test_there_is_a_log_of_every_family() -> None:
    assert {log.family for log in LOGS.values()} | {"human"} == {family.name for family in FAMILIES} <= set(READERS)


@pytest.mark.parametrize("name", LOGS)
def test_family(tmp_path: Path, name: str) -> None:
    log = LOGS[name]
    write_run(tmp_path, log.lines(), args=log.args or None, first=log.first)
    (run,) = scan_runs(tmp_path)
    assert (run.family, run.outcome, run.skipped, run.usable) == (log.family, "success", "", log.usable)
    (trace,) = READERS["auto"](tmp_path, [TASK])
    assert READERS[log.family](tmp_path, [TASK]) == [trace]
    assert (trace.task_id, trace.instruction, trace.expert) == (TASK.id, TASK.instruction, log.family)
    first, last = trace.steps
    assert (first.actions, last.actions) == ((CENTRE,), (Action("finished"),))
    assert (first.pyautogui, last.pyautogui) == (CLICK, "DONE")
    assert (first.intent, first.reflection) == (log.intent, log.reflection)
    assert (first.response is not None) == log.response
    assert log.plan in (None, first.plan)
    assert log.call in (None, first.call)
    assert trace.success
    assert trace.faithful
    assert plan_from_trace(trace) == f"1. {log.intent}"
    if "converted" in log.usable:
        assert convert_trace(trace).faithful
        assert "(960,540)" in convert_trace(trace).pairs[0][1]
    if "raw" in log.usable and log.response:
        assert raw_pairs(trace)[0][1] == log.lines()[0]["response"]


@pytest.mark.parametrize(
    ("name", "thought"),
    [
        ("UI-TARS-1.5", "The dialog is open. I click OK."),
        ("UI-TARS, thousandths", "对话框已打开。 点击确定。"),
        ("OpenCUA, pixels of the resized picture", "The dialog is open. Click the OK button."),
        ("Claude", "The dialog is open. I click the OK button."),
        ("GUI-Owl 1.0", "The dialog is open. Click OK."),
        ("Qwen3-VL", "Click the OK button."),
        ("GUI-Owl 1.5", "Click the OK button."),
        ("mobileagent_v3", "Click at (960, 540)."),
    ],
)
def test_a_converted_thought_tells_what_the_step_does(tmp_path: Path, name: str, thought: str) -> None:
    log = LOGS[name]
    write_run(tmp_path, log.lines(), args=log.args or None)
    (run,) = scan_runs(tmp_path)
    assert convert_trace(run.trace()).pairs[0][1].startswith(f"Thought: {thought}\nAction: click(")
    assert convert_trace(run.trace(), action_text="qwen3vl").pairs[0][1].startswith(f"Action: {thought}\n<tool_call>")
    last = thought.removeprefix("The dialog is open. ").split("。 ")[-1].rstrip(".")
    assert plan_from_trace(run.trace(), source="converted") == f"1. {last}"


def test_a_thinking_model_s_tags_are_no_thought(tmp_path: Path) -> None:
    click = owl(1, CLICK, {"action": "left_click", "coordinate": [500, 500]}, form="action")
    click["response"] = f"<think>\nThe dialog is open. It can go.\n</think>\n\n{click['response']}"
    write_run(tmp_path, [click, owl(2, "DONE", OWL_ENDED, form="action")], args={"model": "qwen3-vl-8b-thinking"})
    (run,) = scan_runs(tmp_path)
    assert convert_trace(run.trace()).pairs[0][1].startswith("Thought: The dialog is open. Click the OK button.\nAct")


def test_pictures_are_after_each_action_but_before_it_of_os_symphony(tmp_path: Path) -> None:
    one, two = frame(1, SCREEN), frame(2, SCREEN)
    write_run(tmp_path / "after", good())
    (trace,) = READERS["agent_s2"](tmp_path / "after", [TASK])
    assert (trace.screenshots, trace.final_screenshot) == ((frame(0, SCREEN), one), two)
    write_run(tmp_path / "before", LOGS["OS-Symphony"].lines(), first=None)
    (trace,) = READERS["os_symphony"](tmp_path / "before", [TASK])
    assert (trace.screenshots, trace.final_screenshot) == ((one, two), None)


def test_a_human_s_log_has_a_result_and_no_steps(tmp_path: Path) -> None:
    write_run(tmp_path, [{"instruction": "Press OK", "initial_state": "initial_state.png"}], first=None)
    (run,) = scan_runs(tmp_path)
    assert (run.family, run.outcome, run.usable, run.skipped) == ("human", "success", (), "the log has no step")
    assert run.instruction == "Press OK"


def test_what_happened_is_what_was_executed(tmp_path: Path) -> None:
    write = "import pyautogui\npyautogui.write('ls', interval=0.1)\npyautogui.press('enter')"
    lines = [
        owl(1, write, {"action": "type", "text": " ls\n", "enter": 1}),
        owl(2, "FAIL", {"action": "click", "coordinate": [100, 100]}),
    ]
    write_run(tmp_path, lines, result="0")
    (trace,) = READERS["gui_owl"](tmp_path, [TASK])
    assert [step.actions for step in trace.steps] == [(Action("type", content="ls\n"),), (Action("call_user"),)]


def test_a_guarded_import_is_no_obstacle(tmp_path: Path) -> None:
    source = f"{PYPERCLIP}pyautogui.click(1, 2); pyautogui.write('hello'); pyautogui.press('enter'); "
    write_run(tmp_path, [s3(1, source, "agent.type('hello')"), s3(2, "DONE", "agent.done()")])
    (trace,) = READERS["agent_s3"](tmp_path, [TASK])
    assert trace.steps[0].actions == (Action("click", start=(1.0, 2.0)), Action("type", content="hello\n"))
    assert trace.faithful


def test_steps_that_cannot_be_represented_are_named(tmp_path: Path) -> None:
    lines = [
        s2(1, "import subprocess; subprocess.run(['wmctrl'])"),
        s2(2, "import pyautogui; pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, button='right')"),
        s3(3, "import time; time.sleep(2.2)", "agent.call_code_agent('sum up')") | {"code_agent_output": {"steps": 3}},
        s2(4, {"action_type": "tool_use", "name": "computer"}),
        s2(5, "DONE", "agent.done()"),
    ]
    write_run(tmp_path, lines)
    (run,) = scan_runs(tmp_path, BY_NAME["agent_s3"])
    assert [index for index, _ in run.inexact] == [0, 1, 2, 3]
    reasons = [reason for _, reason in run.inexact]
    assert reasons[:3] == ["bad_source", "not_convertible", "code_agent"]
    assert reasons[3] == "unknown_action: no source in the action object with the keys action_type, name"
    assert run.problems[0] == "step 1: bad_source"
    assert run.usable == ("plan", "raw")
    trace = run.trace()
    assert not trace.faithful
    assert not convert_trace(trace).faithful


def test_runs_of_other_tasks_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path, good())
    write_run(tmp_path, good(), task=OTHER.id, result="0.0")
    assert [trace.task_id for trace in READERS["agent_s2"](tmp_path, [OTHER])] == [OTHER.id]
    assert [trace.success for trace in READERS["agent_s2"](tmp_path, [TASK, OTHER])] == [True, False]
