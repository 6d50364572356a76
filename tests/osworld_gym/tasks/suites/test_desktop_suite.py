"""The desktop suite as data: schema, plans, splits, lengths of the oracle scripts. No desktop needed."""

import json
from collections import Counter

import pytest
from file_desktop import FileDesktop
from repository import ROOT

from osworld_gym.desktops.setup_schema import STEPS
from osworld_gym.tasks.evaluation.verify import read_evaluator, verify
from osworld_gym.tasks.oracles.gui_script import LocalOracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.suites.authoring import DIFFICULTIES, plan_text
from osworld_gym.tasks.suites.desktop.suite import desktop_suite, new_tasks
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

SUITE = desktop_suite()
#: setup steps that OSWorld's client supports, and one of ours
KNOWN_STEPS = {"execute", "launch", "sleep", "write_file"}
APPLICATIONS = {
    *("libreoffice_calc", "libreoffice_writer", "libreoffice_impress", "chrome", "gimp", "vlc", "thunderbird"),
    *("file_manager", "text_editor", "terminal"),
}


def infeasible(task):
    return task.evaluator["func"] == "infeasible"


def test_the_suite_is_large_and_covers_every_application():
    assert load_suite("desktop") == SUITE
    assert len(new_tasks()) >= 40
    assert len(SUITE.tasks) >= 50
    assert {app for task in SUITE.tasks for app in task.raw["related_apps"]} >= APPLICATIONS
    assert sum(len(task.raw["related_apps"]) >= 2 and task.domain == "multi_apps" for task in SUITE.tasks) >= 5
    assert sum(map(infeasible, SUITE.tasks)) >= 5
    assert {task.raw["difficulty"] for task in SUITE.tasks} == set(DIFFICULTIES)
    assert len({task.instruction for task in SUITE.tasks}) == len(SUITE.tasks)


def test_the_splits_are_disjoint_and_cover_every_domain():
    train, held_out = SUITE.split("train"), SUITE.split("held_out")
    assert len(train) + len(held_out) == len(SUITE.tasks)
    assert 0.25 <= len(held_out) / len(SUITE.tasks) <= 0.35
    assert {task.domain for task in train} == {task.domain for task in held_out}
    assert not {task.content_hash for task in train} & {task.content_hash for task in held_out}
    assert any(map(infeasible, held_out))


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_task_is_well_formed(task):
    again = Task.from_json(json.loads(json.dumps(task.to_json())))
    assert again.content_hash == task.content_hash
    assert {step["type"] for step in task.config} <= KNOWN_STEPS & set(STEPS)
    if infeasible(task):
        assert "infeasible" in task.tags
        assert [step["do"] for step in task.oracle["steps"]] == ["fail"] * 3
    else:
        read_evaluator(task)
        assert 2 <= len(task.oracle["steps"]) <= 15
        assert all(step["do"] != "fail" for step in task.oracle["steps"])
    assert task.raw["difficulty"] in task.tags
    assert ("gui-oracle" in task.tags) != ("shell-oracle" in task.tags)
    for style in ("expert", "native"):
        assert isinstance(make_oracle(task, style), LocalOracle)


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_plan_describes_what_the_oracle_does(task):
    lines = task.raw["plan"].splitlines()
    assert [line.split(". ", 1)[0] for line in lines] == [str(number) for number in range(1, len(lines) + 1)]
    assert all(any(step["intent"] in line for step in task.oracle["steps"]) for line in lines)
    assert task.raw["plan"] == plan_text(task.oracle)


def test_a_task_file_is_small_and_contains_no_path_of_this_machine():
    for task in SUITE.tasks:
        text = json.dumps(task.to_json())
        assert len(text) < 200_000, task.id
        assert "/home/" not in text.replace("/home/user", "")


def test_the_suite_is_the_same_every_time():
    before = {task.id: task.content_hash for task in SUITE.tasks}
    desktop_suite.cache_clear()
    assert {task.id: task.content_hash for task in desktop_suite().tasks} == before


def test_there_are_tasks_of_every_kind():
    assert min(Counter(task.domain for task in SUITE.tasks).values()) >= 2


def test_the_page_names_every_task():
    page = (ROOT / "docs" / "suite.md").read_text()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == {task.id for task in SUITE.tasks}
    held_out = {task.id for task in SUITE.split("held_out")}
    for task in SUITE.tasks:
        cells = [cell.strip() for cell in rows[task.id].strip("|").split("|")]
        split = "held out" if task.id in held_out else "train"
        wanted = [", ".join(task.raw["related_apps"]), str(len(task.oracle["steps"])), task.raw["difficulty"], split]
        assert cells[1:5] == wanted


LISTING = "/home/user/Documents:\nalpha.txt\nbeta.txt\n"
GONE = {"ls": LISTING, "ls ~/.local/share/Trash/files": "gamma.txt\n"}
UNTOUCHED = {"~/Documents/other.txt": b"x\n", "~/Documents/poem.txt": b"roses are red\n"}


@pytest.mark.parametrize(
    ("name", "commands", "score"),
    [
        ("local-files-delete", GONE, 1.0),
        ("local-files-delete", GONE | {"ls ~/.local/share/Trash/files": ""}, 0.0),  # deleted for ever, or moved
        ("local-files-delete", GONE | {"ls": f"{LISTING}other.txt\n", "ls ~/.local/share/Trash/files": ""}, 0.0),
        ("local-open-and-edit", {"grep": "sweep\ndone\n"}, 1.0),
        ("local-open-and-edit", {"grep": "done\nsweep\n"}, 0.0),  # not at the end
        ("desktop-editor-copy-between", {"grep": "My book\nroses are red\nviolets are blue\n"}, 1.0),
        ("desktop-editor-copy-between", {"grep": "roses are red\nviolets are blue\nMy book\n"}, 0.0),
    ],
)
def test_a_wrong_way_is_not_a_success(name, commands, score):
    desktop = FileDesktop(UNTOUCHED, commands)
    assert verify(SUITE.task(name), desktop, stop=StopReason.finished).score == score
