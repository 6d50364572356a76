"""The simulated desktop: determinism, drawing, mouse, keyboard, pop-ups, files, robustness to any input."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from osworld_gym.desktops.sim import SimDesktop, keyboard
from osworld_gym.desktops.sim.draw import paint
from osworld_gym.errors import TaskError
from osworld_gym.types import Action


def quiet(seed: int = 0, **options) -> SimDesktop:
    """A desktop without pop-ups and without an open window."""
    desktop = SimDesktop(popup_probability=0.0, seed=seed, **options)
    desktop.perform([key("ctrl w")])
    return desktop


def key(combo: str) -> Action:
    return Action("hotkey", key=combo)


def typed(text: str) -> Action:
    return Action("type", content=text)


def at(desktop: SimDesktop, label: str, role: str) -> tuple[int, int]:
    (found,) = [e for e in desktop.elements() if e.label == label and e.role == role]
    return found.centre


def click(desktop: SimDesktop, label: str, role: str) -> None:
    desktop.perform([Action("click", start=at(desktop, label, role))])


def launch(desktop: SimDesktop, app: str, tab: str) -> None:
    click(desktop, app, "icon")
    click(desktop, tab, "tab")


def preset(desktop: SimDesktop, **settings) -> None:
    desktop.setup({"type": "sim", "parameters": {"settings": settings}})


def random_action(rng: random.Random) -> Action:
    kinds = ["click", "left_double", "right_single", "drag", "scroll", "type", "hotkey", "wait", "finished", "nonsense"]
    numbers = [-1e9, -1.0, 0.0, 64.5, 127.99, 128.0, 1e300, float("inf"), float("-inf"), float("nan")]

    def point():
        some = rng.choice(numbers), rng.choice(numbers)
        return rng.choice([None, some, (rng.uniform(0, 128), rng.uniform(0, 128))])

    words = [
        "",
        "\n",
        "sound\n",
        "\n\n\n",
        "a",
        "  ",
        "报告",
        "\x00\ud800",
        "x" * 500,
        "final",
        "mute\n",
        "f2 report\t",
    ]
    combos = [
        "super",
        "ctrl",
        "ctrl 9",
        "ctrl 1",
        "+",
        "tab",
        "enter",
        "escape",
        "f2",
        "delete",
        "ctrl v",
        "ctrl c",
        "\n",
        "ß",
    ]
    combos += ["shift f10", "space", "down", "ctrl a", "backspace", "alt f4", "Return", "WIN"]
    direction = rng.choice(["up", "down", "left", "", None, "sideways"])
    text, combo = rng.choice([*words, None]), rng.choice([*combos, None])
    return Action(rng.choice(kinds), start=point(), end=point(), key=combo, content=text, direction=direction)


def test_same_seed_gives_same_pixels_and_nothing_of_an_earlier_episode_survives():
    used, fresh = SimDesktop(seed=3), SimDesktop(seed=7)
    rng = random.Random(1)
    for _ in range(100):
        used.perform([random_action(rng)])
        used.screenshot()
    used.reset(7)
    walk = [random_action(rng) for _ in range(60)]
    for action in walk:
        used.perform([action])
        fresh.perform([action])
        np.testing.assert_array_equal(used.screenshot().pixels, fresh.screenshot().pixels)
        assert used.state() == fresh.state()


def test_seeds_differ_in_theme_dock_and_window_place():
    layouts = [SimDesktop(seed=s).layout for s in range(60)]
    assert len({layout.theme for layout in layouts}) >= 6
    assert {layout.edge for layout in layouts} == {"top", "bottom", "left", "right"}
    assert len({layout.windows["sound"] for layout in layouts}) >= 8
    assert len({tuple(layout.dock.values()) for layout in layouts}) == 60


def test_a_screenshot_is_a_copy_and_redrawing_only_what_changed_equals_drawing_everything():
    desktop, rng = SimDesktop(seed=5), random.Random(5)
    first = desktop.screenshot().pixels
    kept = first.copy()
    for _ in range(200):
        desktop.perform([random_action(rng)])
        shown = desktop.screenshot().pixels
        full = np.zeros_like(shown)
        looks = {place: cell.look for place, cell in desktop.scene().cells.items()}
        assert paint(full, looks, {}, desktop.layout.theme, desktop.layout.text_top) == 64
        np.testing.assert_array_equal(shown, full)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize("seed", range(4))
def test_any_string_and_coordinate_is_survived(seed):
    desktop, rng = SimDesktop(seed=seed, popup_probability=0.1, shuffle_labels=seed == 3), random.Random(seed)
    names = sorted(desktop.state()["settings"])
    for step in range(2500):
        if step % 100 == 0:
            desktop.reset(step)
        desktop.perform([random_action(rng) for _ in range(rng.randrange(3))])
        state = json.loads(desktop.read_file("/state.json"))
        assert sorted(state["settings"]) == names
        if step % 10 == 0:
            assert desktop.screenshot().pixels.shape == (128, 128, 3)
            desktop.elements()


def test_screen_of_other_size():
    desktop = SimDesktop(tiles=(12, 9), popup_probability=0.0)
    assert desktop.screen_size == (192, 144)
    assert desktop.screenshot().pixels.shape == (144, 192, 3)
    for bad in ((7, 8), (8, 7), 8, (8,), (8, 8, 3)):
        with pytest.raises(ValueError, match="at least"):
            SimDesktop(tiles=bad)
    with pytest.raises(ValueError, match="popup_probability"):
        SimDesktop(popup_probability=1.5)


def test_points_outside_are_moved_to_the_edge():
    inside, outside = quiet(2), quiet(2)
    inside.perform([Action("click", start=(127.0, 0.0))])
    outside.perform([Action("click", start=(5000.0, -3.0))])
    np.testing.assert_array_equal(inside.screenshot().pixels, outside.screenshot().pixels)


def test_a_toggle_by_mouse_and_by_keyboard():
    desktop = quiet()
    preset(desktop, mute=False)
    launch(desktop, "sound", "volume")
    click(desktop, "mute", "toggle")
    assert desktop.state()["settings"]["mute"] is True
    assert desktop.state()["changed"] == ["mute"]
    desktop.perform([typed("mute\n")])
    assert desktop.state()["settings"]["mute"] is False
    assert desktop.state()["changed"] == []
    for _ in range(12):
        desktop.perform([key("tab")])
        if desktop.inner.focus == ("toggle", "mute"):
            break
    desktop.perform([key("space")])
    assert desktop.state()["settings"]["mute"] is True


def test_launcher_pages_and_closing_by_keyboard():
    desktop = quiet()
    desktop.perform([key("super"), typed("netw\n")])
    assert desktop.state()["window"] == "network"
    tabs = desktop.layout.tabs["network"]
    assert desktop.state()["tab"] == tabs[0]
    desktop.perform([key("ctrl tab")])
    assert desktop.state()["tab"] == tabs[1]
    desktop.perform([key("ctrl shift tab"), key("ctrl shift tab")])
    assert desktop.state()["tab"] == tabs[2]
    desktop.perform([key("ctrl 2")])
    assert desktop.state()["tab"] == tabs[1]
    desktop.perform([key("win"), typed("nothing such\n")])
    assert desktop.state()["window"] == "network"
    desktop.perform([key("alt f4")])
    assert desktop.state()["window"] is None


def test_keys_that_are_held_combine_until_they_are_released():
    desktop = quiet()
    desktop.perform([key("super"), typed("netw\n")])
    tabs = desktop.layout.tabs["network"]
    desktop.perform([Action("keydown", key="ctrl"), key("2")])
    assert desktop.state()["tab"] == tabs[1]
    desktop.perform([Action("keyup", key="ctrl"), Action("hover", start=(1.0, 1.0))])
    assert desktop.state()["tab"] == tabs[1]
    desktop.perform([Action("keydown", key="alt"), Action("keydown", key="f4"), Action("keyup", key="alt f4")])
    assert desktop.state()["window"] is None


def test_a_slider_is_clicked_or_pulled():
    desktop = quiet()
    preset(desktop, level="25")
    launch(desktop, "sound", "volume")
    click(desktop, "75", "option")
    assert desktop.state()["settings"]["level"] == "75"
    desktop.perform([Action("drag", start=at(desktop, "75", "option"), end=at(desktop, "100", "option"))])
    assert desktop.state()["settings"]["level"] == "100"
    desktop.perform([Action("drag", start=at(desktop, "100", "option"), end=at(desktop, "mute", "toggle"))])
    assert desktop.state()["settings"]["level"] == "100"


def test_a_choice_with_apply_counts_only_when_applied():
    desktop = quiet()
    preset(desktop, scale="small")
    launch(desktop, "display", "screen")
    click(desktop, "large", "option")
    assert desktop.state()["settings"]["scale"] == "small"
    click(desktop, "apply", "button")
    assert desktop.state()["settings"]["scale"] == "large"
    click(desktop, "small", "option")
    click(desktop, "theme", "tab")
    click(desktop, "screen", "tab")
    click(desktop, "apply", "button")
    assert desktop.state()["settings"]["scale"] == "large"  # leaving the page dropped the choice


def test_typing_into_a_field_replaces_what_a_click_selected():
    desktop = quiet()
    launch(desktop, "mail", "write")
    click(desktop, "to", "field")
    desktop.perform([typed("anna")])
    desktop.perform([typed("bel")])
    assert desktop.inner.shown("to") == "annabel"
    click(desktop, "to", "field")
    desktop.perform([typed("bob"), key("backspace")])
    assert desktop.inner.shown("to") == "bo"
    click(desktop, "send", "button")
    assert desktop.state()["settings"]["to"] == "bo"


def test_a_list_scrolls_by_wheel_and_by_typing():
    desktop = quiet()
    preset(desktop, access="home")
    launch(desktop, "network", "wifi")
    assert "station" not in [e.label for e in desktop.elements()]
    for _ in range(5):
        desktop.perform([Action("scroll", start=at(desktop, "access", "label"), direction="down")])
    assert desktop.inner.scroll == 0  # a label cannot be scrolled
    place = next(e for e in desktop.elements() if e.role == "item").centre
    for _ in range(5):
        desktop.perform([Action("scroll", start=place, direction="down")])
    assert desktop.inner.scroll == 2  # 8 items in rows of 2, 2 rows visible
    click(desktop, "station", "item")
    assert desktop.state()["settings"]["access"] == "station"
    desktop.perform([typed("cafe\n")])
    assert desktop.state()["settings"]["access"] == "cafe"
    assert desktop.inner.scroll == 0


def open_folder(desktop: SimDesktop, file: str) -> None:
    """The file's folder, scrolled so that the file is visible."""
    launch(desktop, "files", desktop.catalogue.folder_of(file))
    desktop.perform([typed(file), key("escape")])


def test_deleting_a_file_asks_first():
    desktop = quiet()
    open_folder(desktop, "report")
    desktop.perform([Action("right_single", start=at(desktop, "report", "file"))])
    click(desktop, "delete", "menu")
    click(desktop, "no", "button")
    assert desktop.state()["files"]["report"] == ["docs"]
    desktop.perform([key("delete")])
    click(desktop, "yes", "button")
    assert desktop.state()["files"]["report"] == ["trash"]
    assert desktop.state()["changed"] == ["file:report"]
    assert [e.label for e in desktop.elements() if e.role == "status"] == ["deleted", "report"]


@pytest.mark.parametrize("combo", ["menu", "apps", "Menu", "shift f10", "shiftleft F10"])
def test_the_menu_key_opens_the_menu_of_the_selected_file(combo):
    desktop = quiet()
    open_folder(desktop, "beach")
    click(desktop, "beach", "file")
    desktop.perform([key(combo)])
    assert desktop.inner.menu is not None


def test_a_click_outside_the_menu_only_closes_it():
    desktop = quiet()
    open_folder(desktop, "beach")
    desktop.perform([Action("right_single", start=at(desktop, "beach", "file"))])
    click(desktop, "sound", "icon")
    assert desktop.inner.menu is None
    assert desktop.state()["window"] == "files"


def test_another_application_from_the_launcher_closes_the_menu_of_a_file():
    """The menu of the trash has two entries; at the bottom of the screen the four of a folder have no room."""
    for seed in range(20):
        desktop = quiet(seed)
        desktop.setup({"type": "sim", "parameters": {"trash": ["report", "beach", "jazz", "notes"], "open": "trash"}})
        desktop.perform([Action("right_single", start=at(desktop, "notes", "file"))])
        assert desktop.inner.menu is not None
        desktop.perform([key("super"), typed("files\n")])
        desktop.screenshot()
        assert (desktop.state()["window"], desktop.inner.menu) == ("files", None)


def test_rename_copy_move_trash_restore_and_empty():
    desktop = quiet()
    open_folder(desktop, "beach")
    desktop.perform([key("f2"), typed("final\n")])
    assert desktop.state()["files"]["final"] == ["pics"]
    assert "beach" not in desktop.state()["files"]
    desktop.perform([typed("map"), key("ctrl c"), key("ctrl v")])
    assert desktop.state()["files"]["map2"] == ["pics"]
    open_folder(desktop, "logo")
    desktop.perform([Action("drag", start=at(desktop, "logo", "file"), end=at(desktop, "docs", "tab"))])
    assert desktop.state()["files"]["logo"] == ["docs"]
    open_folder(desktop, "kitten")
    desktop.perform([Action("drag", start=at(desktop, "kitten", "file"), end=at(desktop, "trash", "icon"))])
    assert desktop.state()["files"]["kitten"] == ["trash"]
    click(desktop, "trash", "icon")
    desktop.perform([Action("right_single", start=at(desktop, "kitten", "file"))])
    click(desktop, "restore", "menu")
    assert desktop.state()["files"]["kitten"] == ["pics"]
    desktop.setup({"type": "sim", "parameters": {"trash": ["jazz"]}})
    click(desktop, "empty", "button")
    click(desktop, "yes", "button")
    assert "jazz" not in desktop.state()["files"]


def test_a_double_click_opens_a_file_and_does_not_press_a_toggle_twice():
    desktop = quiet()
    open_folder(desktop, "piano")
    desktop.perform([Action("left_double", start=at(desktop, "piano", "file"))])
    assert desktop.state()["opened"] == "piano"
    preset(desktop, spam=False)
    launch(desktop, "mail", "rules")
    desktop.perform([Action("left_double", start=at(desktop, "spam", "toggle"))])
    assert desktop.state()["settings"]["spam"] is True


def test_a_popup_blocks_everything_until_it_is_closed():
    desktop = SimDesktop(popup_probability=1.0, seed=4)
    desktop.perform([key("ctrl w")])
    before = desktop.state()
    assert desktop.inner.popup is not None
    desktop._popup_probability = 0.0
    desktop.perform([key("super"), typed("sound\n")])  # enter closes the pop-up
    assert desktop.inner.popup is None
    assert desktop.state() == before
    desktop._popup_probability = 1.0
    desktop.perform([Action("wait")])
    assert desktop.inner.popup is not None
    desktop._popup_probability = 0.0
    icon = next(p for p, c in desktop.scene().cells.items() if c.role == "icon")
    desktop.perform([Action("click", start=(icon[0] * 16 + 8, icon[1] * 16 + 8))])
    assert desktop.state() == before
    click(desktop, "close", "popup_close")
    assert desktop.inner.popup is None


def test_popups_depend_on_the_seed_and_the_step_count_alone():
    def popup_steps(action: Action) -> list[int]:
        desktop, out = SimDesktop(popup_probability=0.3, seed=9), []
        for step in range(60):
            desktop.perform([action])
            if desktop.inner.popup is not None:
                out.append(step)
                desktop.inner.popup = None
        return out

    steps = popup_steps(Action("wait"))
    assert steps == popup_steps(Action("click", start=(5.0, 5.0)))
    assert 8 <= len(steps) <= 28  # 60 draws at 0.3: mean 18, standard deviation 3.5
    idle = SimDesktop(popup_probability=1.0)
    idle.perform([Action("finished"), Action("call_user")])
    assert idle.inner.popup is None


def test_every_shortcut_is_accepted_in_every_situation():
    rng = random.Random(0)
    desktop = SimDesktop(popup_probability=0.1)
    for combo in [*keyboard._SHORTCUTS, "ctrl 1", "ctrl 2", "ctrl 3"] * 8:
        desktop.perform([random_action(rng), key(combo)])
        desktop.screenshot()


def test_setup_refuses_what_it_does_not_know():
    desktop = quiet()
    for step, message in (
        ({"type": "execute", "parameters": {}}, "type 'sim'"),
        ({"type": "sim"}, "with parameters"),
        ({"type": "sim", "parameters": {"colour": 1}}, "unknown keys"),
        ({"type": "sim", "parameters": {"settings": {"mut": True}}}, "no setting 'mut'"),
        ({"type": "sim", "parameters": {"settings": {"mute": "yes"}}}, "'mute': expected"),
        ({"type": "sim", "parameters": {"settings": {"to": 3}}}, "'to': expected a text"),
        ({"type": "sim", "parameters": {"trash": ["nosuch"]}}, "no file 'nosuch'"),
        ({"type": "sim", "parameters": {"open": "start"}}, "open: expected "),
        ({"type": "sim", "parameters": {"settings": ["mute"]}}, r"expected settings \{name: value\}"),
        ({"type": "sim", "parameters": {"trash": "report"}}, r"and trash \[file, …\], got"),
    ):
        with pytest.raises(TaskError, match=message):
            desktop.setup(step)


def test_files_of_the_contract():
    desktop = quiet()
    desktop.write_file("/tmp/a", b"\x00b")
    assert desktop.read_file("/tmp/a") == b"\x00b"
    with pytest.raises(FileNotFoundError):
        desktop.read_file("/tmp/b")
    with pytest.raises(PermissionError):
        desktop.write_file("/state.json", b"{}")
    desktop.reset(0)
    with pytest.raises(FileNotFoundError):
        desktop.read_file("/tmp/a")
    with pytest.raises(NotImplementedError):
        desktop.run("ls")
    desktop.close()
    desktop.close()


def test_shuffled_labels_keep_every_name_and_move_most():
    plain, shuffled = SimDesktop(seed=1), SimDesktop(seed=1, shuffle_labels=True)
    assert sorted(plain.state()["settings"]) == sorted(shuffled.state()["settings"])
    assert plain.state()["files"].keys() == shuffled.state()["files"].keys()
    moved = [n for n in plain.catalogue.places if plain.catalogue.place(n)[:2] != shuffled.catalogue.place(n)[:2]]
    assert len(moved) > 0.7 * len(plain.catalogue.places)
    other = SimDesktop(seed=2, shuffle_labels=True)
    assert other.catalogue != shuffled.catalogue
    other.reset(1)
    assert other.catalogue == shuffled.catalogue
