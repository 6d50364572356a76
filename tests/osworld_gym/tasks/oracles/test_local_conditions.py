"""Conditions of the local oracle, on a test double with windows and files."""

import pytest

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.oracles import conditions as local_conditions
from osworld_gym.tasks.oracles.conditions import Conditions
from osworld_gym.tasks.oracles.gui_script import LocalOracle
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action, CommandResult


class Table:
    """Files and windows; ``later``: what happens at the n-th query of the windows."""

    screen_size = (1280, 720)

    def __init__(self, files=None, windows=(), later=()):
        self.files = dict(files or {})
        self.shown = [{"title": t, "x": 10, "y": 20, "width": 400, "height": 200, "active": True} for t in windows]
        self.later = dict(later)
        self.looks = 0

    def windows(self):
        self.looks += 1
        self.later.pop(self.looks, lambda: None)()
        return list(self.shown)

    def read_file(self, path):
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def run(self, command):
        return CommandResult(0, " ".join(command) + "\n", "")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(local_conditions, "DEADLINE", 0.5)
    monkeypatch.setattr(local_conditions, "POLL", 0.001)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (None, True),
        ({"window": "save"}, True),
        ({"window": "Open"}, False),
        ({"active": "SAVE AS"}, True),
        ({"gone": "Open"}, True),
        ({"gone": "Save"}, False),
        ({"file": "/a"}, True),
        ({"file": "/empty"}, False),
        ({"file": "/none"}, False),
        ({"lacks": "/none"}, True),
        ({"lacks": "/a"}, False),
        ({"says": "^echo hi$", "command": ["echo", "hi"]}, True),
        ({"says": "bye", "command": ["echo", "hi"]}, False),
        ({"any": [{"file": "/none"}, {"file": "/a"}]}, True),
        ({"all": [{"file": "/none"}, {"file": "/a"}]}, False),
        ({"changed": "/a"}, False),
    ],
)
def test_conditions(condition, holds):
    table = Table({"/a": b"1", "/empty": b""}, ["Save As"])
    conditions = Conditions([condition])
    conditions.begin(table)
    assert conditions.met(condition, table) is holds


def test_a_change_counts_from_the_beginning():
    table = Table({"/a": b"1"})
    one, new = {"changed": "/a"}, {"any": [{"changed": "/new"}, {"window": "never"}]}
    conditions = Conditions([one, new])
    conditions.begin(table)
    table.files |= {"/a": b"2", "/new": b"x"}
    conditions.begin(table)  # a second call changes nothing
    assert conditions.met(one, table)
    assert conditions.met(new, table)
    table.files["/a"] = b""  # being written
    assert not conditions.met(one, table)


def test_waiting_reports_whether_it_waited():
    table = Table(windows=["Main"])
    conditions = Conditions([])
    assert conditions.wait({"window": "main"}, table) is False
    table = Table(later={4: lambda: table.shown.append({"title": "Late", "active": False})})
    assert conditions.wait({"window": "Late"}, table) is True
    with pytest.raises(DesktopError, match=r"waited 0\.5 s for \{'window': 'x'\}; windows: \['Late'\]") as caught:
        conditions.wait({"window": "x"}, table)
    assert caught.value.reason is FailureReason.evaluator_failed


@pytest.mark.parametrize("wrong", [{}, {"colour": "red"}, {"window": "a", "file": "b"}, {"any": [{"windw": "a"}]}])
def test_a_wrong_condition_is_a_task_error(wrong):
    with pytest.raises(TaskError, match="condition requires one of window, active"):
        Conditions([wrong])


def oracle(*steps, **script):
    steps = [{"subtask": "s", "do": "keys", "keys": "enter", "intent": "Press enter", **step} for step in steps]
    return LocalOracle(Task(id="t", instruction="i", oracle={"type": "local", "steps": steps, **script}))


def test_a_step_waits_and_shows_that_it_did():
    table = Table(windows=["Main"], later={3: lambda: table.shown.append({"title": "Dialog", "active": True})})
    player = oracle({"when": {"active": "Dialog"}, "intent": "Confirm"})
    steps = [player.next_step(table) for _ in range(3)]
    assert [step and step.intent for step in steps] == ["Wait", "Confirm", None]
    assert steps[0].actions == (Action("wait"),)
    assert steps[0].call == "agent.wait(1)"


def test_a_step_is_skipped_unless_its_condition_is_met():
    player = oracle({"only_if": {"window": "Keep?"}}, {"intent": "Next"})
    assert [step and step.intent for step in (player.next_step(Table()), player.next_step(Table()))] == ["Next", None]
    player = oracle({"only_if": {"window": "Keep?"}}, {"intent": "Next"})
    assert player.next_step(Table(windows=["Keep?"])).intent == "Press enter"


def test_the_end_is_waited_for():
    table = Table({"/a": b"1"})
    player = oracle({}, end={"changed": "/a"})
    assert player.next_step(table).intent == "Press enter"
    with pytest.raises(DesktopError, match="waited"):
        player.next_step(table)
    table.files["/a"] = b"2"
    assert player.next_step(table) is None


def test_positions_as_fractions_of_a_window():
    player = oracle({"do": "click", "on": {"window": "main", "part": [0.5, 0.25]}, "what": "w"})
    assert player.next_step(Table(windows=["Main"])).actions == (Action("click", start=(10 + 200, 20 + 50)),)


def test_a_menu_that_is_not_open_is_a_failure_of_the_desktop():
    table = Table(windows=["Main"])
    table.popups = lambda: [{"x": 1, "y": 2, "width": 30, "height": 40}]
    step = {"do": "click", "on": {"popup": [5, 5], "level": 1}, "what": "an item of the submenu"}
    with pytest.raises(DesktopError, match="no open menu of level 1, 1 are open") as caught:
        oracle(step).next_step(table)
    assert caught.value.reason is FailureReason.evaluator_failed
    assert oracle(step | {"on": {"popup": [5, 5]}}).next_step(table).actions == (Action("click", start=(6, 7)),)
