"""The suite ``varied`` as data: splits, well-formed tasks, oracles; no desktop needed."""

import os
import subprocess

import pytest

from osworld_gym.cli import main
from osworld_gym.desktops.guest_server.setup_steps import SETUP_STEPS
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import DesktopError, TaskError
from osworld_gym.tasks.evaluation.verify import read_evaluator
from osworld_gym.tasks.oracles.gui_script import Layout, LocalOracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.setup.arrange import LISTING, START
from osworld_gym.tasks.setup.run import HOST_STEPS
from osworld_gym.tasks.setup.themes import menu_file
from osworld_gym.tasks.suites.varied.editor_tasks import TOGGLES
from osworld_gym.tasks.suites.varied.instances import BINARY, KNOWN, MENU, UNKNOWN, click_item
from osworld_gym.tasks.suites.varied.suite import TRANSFER, cloning_tasks, varied_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action

SUITE = varied_suite()
MOUSE = {"click", "double", "right", "drag"}


def words_on(script):
    """The labels and verbs of a native script; what is typed is free."""
    return {step["intent"] for step in script if step["do"] != "type"}


def test_the_splits_have_the_required_sizes():
    sizes = {name: len(ids) for name, ids in SUITE.splits.items()}
    assert sizes == {"train": 24, "held_out": 12, "validation": 12, "held_out_more": 24}
    for name, size in sizes.items():
        tags = [task.tags[0] for task in SUITE.split(name)]
        assert tags.count(KNOWN) == tags.count(UNKNOWN) == size // 2


def test_no_task_is_in_two_splits():
    ids = [task_id for split in SUITE.splits.values() for task_id in split]
    assert len(ids) == len(set(ids)) == 72


def test_the_splits_of_earlier_results_have_the_same_tasks():
    """Numbers within ids: those of ``train`` and ``held_out`` are known from results, ``validation`` has gained six."""
    numbers = {name: [int(task_id[-2:]) for task_id in ids] for name, ids in SUITE.splits.items()}
    assert numbers["train"] == [
        0,
        2,
        4,
        21,
        27,
        31,
        32,
        34,
        38,
        68,
        74,
        86,
        6,
        8,
        10,
        12,
        30,
        33,
        36,
        64,
        77,
        80,
        83,
        90,
    ]
    assert numbers["held_out"] == [1, 5, 28, 42, 46, 75, 18, 9, 29, 44, 78, 84]
    assert {3, 40, 69, 19, 41, 79} < set(numbers["validation"])


def test_a_topic_of_transfer_is_held_out_and_not_trained():
    (topic,) = TRANSFER
    name = topic.removeprefix("submenu ")
    trained, held_out = (" ".join(task.instruction for task in SUITE.split(split)) for split in ("train", "held_out"))
    assert name not in trained
    assert name in held_out


def test_no_split_has_an_unknown_task_that_dragging_solves():
    assert not any("template:cut" in task.tags for name in SUITE.splits for task in SUITE.split(name))


def test_each_unknown_task_requires_something_that_no_known_one_shows():
    shown = set().union(*(words_on(task.oracle["native"]) for task in cloning_tasks()))
    for task in SUITE.split(UNKNOWN):
        assert words_on(task.oracle["native"]) - shown, task.id


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_task_is_well_formed(task):
    assert Task.from_json(task.to_json()) == task
    assert {step["type"] for step in task.config} <= {*SETUP_STEPS, *HOST_STEPS}
    read_evaluator(task)
    for style in ("expert", "native"):
        assert isinstance(make_oracle(task, style), LocalOracle)
    native, expert = task.oracle["native"], task.oracle["steps"]
    assert 1 <= len(native) <= 6
    assert all(step["do"] in MOUSE | {"type"} for step in native)
    assert any(step["do"] in {"keys", "type"} for step in expert) or task.tags[1] == "template:drag"
    assert all(step["intent"].split()[0][0].isupper() for step in expert if step["do"] == "keys")


def test_the_menus_first_letters_differ():
    for labels in (list(MENU), *MENU.values()):
        letters = [label[0].lower() for label in labels]
        assert len(set(letters)) == len(letters)


def test_mnemonics_differ_within_a_menu():
    for menu in {setting.menu for setting in TOGGLES}:
        letters = [setting.mnemonic for setting in TOGGLES if setting.menu == menu and setting.mnemonic]
        assert len(set(letters)) == len(letters)


class Menus:
    """A test double with the open menus of a desktop, and the file of its menu."""

    screen_size = (640, 360)

    def __init__(self, *popups):
        self._popups = [dict(zip(("x", "y", "width", "height"), popup, strict=True)) for popup in popups]

    def windows(self):
        return []

    def popups(self):
        return self._popups

    def read_file(self, path):
        assert path == "~/.config/openbox/menu.xml"
        return menu_file([("Sound", [("mute", "a"), ("echo", "b")]), ("Power", [("sleep", "c")])]).encode()


def pointed(on, desktop):
    step = {"do": "click", "on": on, "what": "w", "intent": "click w", "subtask": "s"}
    oracle = LocalOracle(Task(id="t", instruction="i", oracle={"type": "local", "steps": [step]}), "native")
    (action,) = oracle.next_step(desktop).actions
    return action


def test_positions_in_menus_and_on_the_screen():
    both = Menus((100, 50, 80, 40), (180, 60, 30, 60))
    assert pointed({"popup": [5, 7]}, both) == Action("click", start=(185, 67))
    assert pointed({"popup": [5, -7], "level": 0}, both) == Action("click", start=(105, 83))
    # two entries in 40 pixels: the second one's centre is at 30; two items in 60 pixels: at 45
    assert pointed({"entry": "Power"}, both) == Action("click", start=(140, 80))
    assert pointed({"entry": "echo"}, both) == Action("click", start=(195, 105))
    assert pointed({"screen": [0.25, 0.5]}, both) == Action("click", start=(160, 180))


def test_points_on_windows_and_menus_are_the_centres_of_their_squares():
    layout = {"first": [190, 136], "step": [100, 79], "margin": 140, "grid": 20}
    # 239 is in the square from 220 to 240, 240 in the next one
    assert Layout.of(layout).snapped((239, 240)) == (230, 250)
    assert Layout().snapped((239, 240)) == (239, 240)
    step = {"do": "click", "what": "w", "intent": "click w", "subtask": "s"}
    for on, point in (({"popup": [5, 7]}, (110, 50)), ({"screen": [0.25, 0.2]}, (160, 72))):
        oracle = {"type": "local", "layout": layout, "steps": [step | {"on": on}]}
        (action,) = (
            LocalOracle(Task(id="t", instruction="i", oracle=oracle)).next_step(Menus((100, 50, 80, 40))).actions
        )
        assert action.start == point


def test_an_item_is_clicked_as_soon_as_its_menu_is_open():
    class Slow(Menus):
        def popups(self):
            self._popups.append({"x": 10 * len(self._popups), "y": 0, "width": 9, "height": 9})
            return self._popups

    step = click_item({"popup": [1, 2]}, "Save", "click Save", menus=2) | {"subtask": "s"}
    oracle = LocalOracle(Task(id="t", instruction="i", oracle={"type": "local", "steps": [step]}), "native")
    desktop = Slow()
    assert oracle.next_step(desktop).actions == (Action("wait"),)
    assert oracle.next_step(desktop).actions[0].kind == "click"


@pytest.mark.parametrize("on", [{"window": "notes", "at": [1, 1]}, {"popup": [1, 1]}])
def test_a_script_on_a_desktop_without_windows_is_a_task_error(on):
    with pytest.raises(TaskError, match=r"oracle\.type 'local' requires .*, got SimDesktop; fix: provider local"):
        pointed(on, SimDesktop())


def test_a_missing_menu_is_a_failure_of_the_oracle():
    for on, problem in (({"popup": [5, 7]}, "no open menu"), ({"entry": "zoom"}, "no 'zoom' in the desktop's menu")):
        with pytest.raises(DesktopError, match=problem):
            pointed(on, Menus())


def test_a_script_without_native_steps_plays_the_experts():
    step = {"do": "keys", "keys": "ctrl s", "intent": "Save", "subtask": "s"}
    task = Task(id="t", instruction="i", oracle={"type": "local", "steps": [step]})
    assert LocalOracle(task, "native").next_step(Menus()).intent == "Save"
    click = {"do": "click", "on": {"screen": [0, 0]}, "what": "w", "intent": "click w", "subtask": "s"}
    task = Task(id="t", instruction="i", oracle={"type": "local", "steps": [step], "native": [click]})
    assert LocalOracle(task, "native").next_step(Menus()).intent == "click w"
    assert LocalOracle(task, "expert").next_step(Menus()).intent == "Save"


def test_the_list_command_shows_the_split_table(capsys):
    assert main(["tasks", "list", "--suite", "varied", "--split", "train"]) == 0
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 24
    assert [line.split() for line in output.err.splitlines()] == [
        ["split", "known", "unknown"],
        ["train", "12", "12"],
        ["held_out", "6", "6"],
        ["validation", "6", "6"],
        ["held_out_more", "12", "12"],
    ]


def accepted(task, home, done):
    """Whether the verifier accepts what a command leaves of a desktop's home folder."""
    documents = home / "Documents"
    (documents / "Archive").mkdir(parents=True)
    (home / ".cache").mkdir()
    (home / ".local/share/Trash/files").mkdir(parents=True)
    for name in ("apple", "bread", "Archive/apple"):
        (documents / name).write_text(BINARY)

    def shell(command):
        environment = os.environ | {"HOME": str(home)}
        run = ["bash", "-c", command]
        return subprocess.run(run, env=environment, capture_output=True, text=True, timeout=60, check=False).stdout

    shell(f"({LISTING}) > ~/{START}; {done}")
    (check,) = read_evaluator(task)[1]
    return shell(check.result["command"]) == check.expected["rules"]["expected"]


@pytest.mark.parametrize(
    ("template", "done", "right"),
    [
        ("trash", "mv ~/Documents/apple ~/.local/share/Trash/files", True),
        ("trash", "rm ~/Documents/apple", False),
        ("trash", "mv ~/Documents/apple ~", False),
        ("trash", "mv ~/Documents/apple ~/Documents/bread ~/.local/share/Trash/files", False),
        ("trash-inside", "mv ~/Documents/Archive/apple ~/.local/share/Trash/files", True),
        ("trash-inside", "mv ~/Documents/apple ~/.local/share/Trash/files", False),
        ("trash-inside", "rm ~/Documents/Archive/apple", False),
        ("write", "printf winter > ~/Documents/notes.txt", True),
        ("write", "echo winter > ~/Documents/notes.txt", True),
        ("write", "printf 'winter\\nsummer' > ~/Documents/notes.txt", False),
        ("write", "printf '\\nwinter' > ~/Documents/notes.txt", False),
        ("write", "true", False),
        ("open-write", "echo winter > ~/Documents/apple.txt", True),
    ],
)
def test_what_verifiers_accept(template, done, right, tmp_path):
    task = next(task for task in SUITE.tasks if f"template:{template}" in task.tags)
    assert accepted(task, tmp_path, done) == right
