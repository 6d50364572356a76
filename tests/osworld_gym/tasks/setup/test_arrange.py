"""The setup step ``arrange``: what it writes follows from the seed, and differs between seeds."""

from xml.etree import ElementTree

import pytest
from file_desktop import FileDesktop

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.guest.home import FILES
from osworld_gym.tasks.setup.arrange import START, arrange_command, arranged_files
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.setup.themes import (
    GRID,
    KEYFILE,
    LIBFM,
    MENU,
    OPENBOX_THEMES,
    PALETTES,
    PCMANFM,
    RC,
    window_manager_file,
)
from osworld_gym.tasks.task import Task
from osworld_gym.types import CommandResult

SCREEN = (640, 360)
PARAMETERS = {
    "files": {"apple": "x", "Photos/pear": "y"},
    "others": {"names": ["bread", "candle", "desert", "engine"], "count": [1, 3], "content": "z"},
    "menu": {"Sound": ["mute", "echo", "bass"], "Power": ["sleep"], "Input": ["repeat"]},
}


def names(files):
    return {path.removeprefix("Documents/") for path in files if path.startswith("Documents/")}


def menu(files):
    """(label, labels) of each submenu, in its order."""
    (root,) = ElementTree.fromstring(files[MENU])
    return [(group.get("label"), [item.get("label") for item in group]) for group in root]


def test_the_same_seed_writes_the_same_files():
    assert arranged_files(PARAMETERS, 7, SCREEN) == arranged_files(PARAMETERS, 7, SCREEN)


def test_seeds_vary_colours_windows_files_and_the_menu():
    all_files = [arranged_files(PARAMETERS, seed, SCREEN) for seed in range(40)]
    assert len({files[".config/gtk-3.0/gtk.css"] for files in all_files}) == len(PALETTES)
    assert len({files[RC] for files in all_files}) > 15  # 6 themes, 3 x 2 positions
    assert {theme for theme in OPENBOX_THEMES if any(theme in files[RC] for files in all_files)} == set(OPENBOX_THEMES)
    assert {len(names(files)) for files in all_files} == {3, 4, 5}
    assert len({str(menu(files)) for files in all_files}) > 10
    for files in all_files:
        assert files["Documents/apple"] == "x"
        assert files["Documents/Photos/pear"] == "y"
        assert {(group, frozenset(items)) for group, items in menu(files)} == {
            (group, frozenset(items)) for group, items in PARAMETERS["menu"].items()
        }


@pytest.mark.parametrize("size", [SCREEN, (1280, 720)])
def test_windows_stay_on_the_screen_and_on_the_grid(size):
    width, height = size
    for seed in range(50):
        root = ElementTree.fromstring(arranged_files({}, seed, size)[RC])
        rule = root.find(".//{*}application")
        x, y, w, h = (int(rule.findtext(f".//{{*}}{tag}")) for tag in ("x", "y", "width", "height"))
        left, top = OPENBOX_THEMES[root.findtext(".//{*}theme/{*}name")]
        assert (w, h) == (560, 280)
        assert (x + left) % GRID == (y + top) % GRID == 0
        assert 0 <= x <= width - w - left
        assert 0 <= y <= height - h - top
        # the pointer is over the content, where it opens no tooltip
        assert y + top + 80 <= height // 2 <= y + top + 230


def test_positions_vary():
    rules = [arranged_files({}, seed, SCREEN)[RC] for seed in range(50)]
    places = set()
    for text in rules:
        root = ElementTree.fromstring(text)
        left, top = OPENBOX_THEMES[root.findtext(".//{*}theme/{*}name")]
        rule = root.find(".//{*}application")
        places.add((int(rule.findtext(".//{*}x")) + left, int(rule.findtext(".//{*}y")) + top))
    # 640 - 560 = 80 pixels across: 20, 40, 60; down: from 40 to 360 - 280 - 20 = 60
    assert places == {(x, y) for x in (20, 40, 60) for y in (40, 60)}


def test_the_file_managers_other_settings_are_those_of_the_bare_home():
    written = arranged_files({}, 0, SCREEN)
    assert written[LIBFM].replace("big_icon_size=54", "big_icon_size=48") == FILES[LIBFM]
    assert written[PCMANFM].replace("splitter_pos=130", "splitter_pos=150") == FILES[PCMANFM]


def test_a_changed_configuration_of_the_bare_home_is_noticed(monkeypatch):
    monkeypatch.setitem(FILES, RC, FILES[RC].replace("<maximized>yes</maximized>", ""))
    with pytest.raises(ValueError, match=r"expected '<maximized>yes</maximized>'"):
        window_manager_file("Natura", (0, 0, 10, 10))


def test_the_editors_other_settings_are_those_of_the_bare_home():
    written = arranged_files({}, 0, SCREEN)[KEYFILE]
    assert written.replace("highlight-current-line=false", "highlight-current-line=true") == FILES[KEYFILE]


@pytest.mark.parametrize("name", ["a'b", "", "a\nb", "$HOME", "x;y"])
def test_a_name_that_a_shell_would_read_is_a_task_error(name):
    for parameters in ({"files": {name: ""}}, {"menu": {"Sound": [name]}}):
        with pytest.raises(TaskError, match=r"letters, digits"):
            arranged_files(parameters, 0, SCREEN)


def test_too_few_names_are_a_task_error():
    with pytest.raises(TaskError, match=r"requires at least 3 names, got 1"):
        arranged_files({"others": {"names": ["a"], "count": [1, 3], "content": ""}}, 0, SCREEN)


def test_the_step_runs_with_the_episodes_seed():
    task = Task(id="t", instruction="i", config=({"type": "arrange", "parameters": PARAMETERS | {"folders": ["New"]}},))
    command = arrange_command(["New"])
    assert "mkdir -p .cache Documents Documents/'New'" in command
    assert START in command
    desktop = FileDesktop(commands={command: ""})
    prepare(task, desktop, seed=11)
    assert desktop.ran == [command]
    expected = arranged_files(task.config[0]["parameters"], 11, desktop.screen_size)
    assert desktop.files == {f"~/{path}": text.encode() for path, text in expected.items()}
    failing = FileDesktop(commands={command: CommandResult(1, "", "openbox: not running")})
    with pytest.raises(DesktopError, match="openbox: not running") as caught:
        prepare(task, failing, seed=11)
    assert caught.value.reason is FailureReason.setup_failed


def test_a_misspelt_parameter_is_a_task_error():
    with pytest.raises(TaskError, match=r"unknown parameters: file; known: files"):
        Task.from_json(
            {
                "id": "t",
                "instruction": "i",
                "evaluator": {"func": "infeasible"},
                "config": [{"type": "arrange", "parameters": {"file": {}}}],
            }
        )
