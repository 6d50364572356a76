"""The local suite and its oracle's scripts as data: no desktop needed."""

import pytest

from osworld_gym.desktops.guest_server.setup_steps import SETUP_STEPS
from osworld_gym.errors import TaskError
from osworld_gym.tasks.evaluation.verify import read_evaluator
from osworld_gym.tasks.oracles.gui_script import CALL_USER_TIMES, LocalOracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.suites.desktop.local import local_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, CommandResult

SUITE = local_suite()


class Windows:
    """A test double with what the oracle reads of a desktop: its windows, and the listing of a folder."""

    screen_size = (1280, 720)

    def windows(self):
        return [
            {"title": "a.txt - Mousepad", "x": 100, "y": 20, "width": 800, "height": 600},
            {"title": "docs", "x": 0, "y": 19, "width": 1280, "height": 701},
        ]

    def run(self, command):
        assert command == ["ls", "-1", "--group-directories-first", "/docs"]
        return CommandResult(0, "Inbox\n" + "".join(f"f{i:02}.txt\n" for i in range(20)), "")


def oracle(*steps, style="expert"):
    script = {"type": "local", "steps": [{"subtask": "s", "intent": "i", "what": "w", **step} for step in steps]}
    return LocalOracle(Task(id="t", instruction="i", oracle=script), style)


def test_the_suite_is_large_enough_and_split():
    assert len(SUITE.tasks) >= 8
    train, held_out = SUITE.split("train"), SUITE.split("held_out")
    assert len(train) + len(held_out) == len(SUITE.tasks)
    assert len(held_out) >= 4
    assert any("infeasible" in task.tags for task in SUITE.tasks)


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_task_is_well_formed(task):
    assert Task.from_json(task.to_json()) == task
    assert {step["type"] for step in task.config} <= set(SETUP_STEPS)
    if task.evaluator["func"] != "infeasible":
        read_evaluator(task)
    for style in ("expert", "native"):
        assert isinstance(make_oracle(task, style), LocalOracle)
    assert 1 <= len(task.oracle["steps"]) <= 8


def test_input_positions():
    first = oracle({"do": "click", "on": {"window": "mousepad", "at": [5, 7]}}).next_step(Windows())
    assert first.actions == (Action("click", start=(105, 27)),)
    assert first.call == 'agent.click("w", 1, "left")'
    corner = oracle({"do": "right", "on": {"window": "mousepad", "at": [-50, -24]}}).next_step(Windows())
    assert corner.actions == (Action("right_single", start=(100 + 800 - 50, 20 + 600 - 24)),)
    # 1280 pixels fit (1280 - 165) // 94 = 11 icons per row; f10 has index 11 after Inbox: row 1, column 0
    inside = {name: {"icon": f"{name}.txt", "folder": "/docs"} for name in ("f01", "f10")}
    icons = oracle({"do": "drag", "on": inside["f01"], "onto": inside["f10"], "goal": "g"})
    assert icons.next_step(Windows()).actions == (Action("drag", start=(206 + 2 * 94, 118), end=(206, 118 + 94)),)


def test_styles_split_inputs():
    step = {"do": "type", "text": "new\n", "overwrite": True}
    expert = oracle(step).next_step(Windows())
    assert expert.actions == (Action("hotkey", key="ctrl a"), Action("type", content="new\n"))
    assert expert.call == "agent.type(text='new', overwrite=True, enter=True)"
    assert "(Grounded Action)" in expert.plan
    native = oracle(step, style="native")
    assert [native.next_step(Windows()).actions for _ in range(2)] == [(a,) for a in expert.actions]
    assert native.next_step(Windows()) is None


def test_giving_up_is_as_many_call_user_actions_as_the_official_setting_requires():
    script = make_oracle(SUITE.task("local-editor-infeasible"))
    steps = [script.next_step(Windows()) for _ in range(CALL_USER_TIMES + 1)]
    assert [step and step.actions for step in steps] == [(Action("call_user"),)] * CALL_USER_TIMES + [None]


def test_a_wrong_script_is_a_task_error():
    with pytest.raises(TaskError, match=r"requires oracle\.type 'local' and steps"):
        LocalOracle(Task(id="t", instruction="i"))
    with pytest.raises(TaskError, match=r"unknown oracle step .* do: click, double"):
        oracle({"do": "dance"})
    for step, problem in (
        ({"do": ["click"]}, "unknown oracle step"),
        ({"do": "click"}, "on is missing in the oracle step"),
        ({"do": "click", "on": {"window": "w"}}, r"on\.at\|part is missing"),
        ({"do": "drag", "on": {"entry": "e"}, "onto": [1, 2]}, r"onto\.screen\|icon\|entry\|popup\|window is missing"),
        ({"do": "click", "on": {"icon": "f.txt"}}, r"on\.folder is missing"),
        ({"do": "type"}, "text is missing"),
        ({"do": "keys", "keys": 7}, "keys is no text or list of texts"),
    ):
        with pytest.raises(TaskError, match=problem):
            oracle(step)
    for step, problem in (("click", "unknown oracle step"), ({"do": "fail", "intent": "x"}, "subtask is missing")):
        with pytest.raises(TaskError, match=problem):
            LocalOracle(Task(id="t", instruction="i", oracle={"type": "local", "steps": [step]}))
    with pytest.raises(ValueError, match="unknown oracle style 'loud'"):
        oracle({"do": "fail"}, style="loud")
