"""Whether actions are exactly the input of the executed source, by events of pointer, buttons and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from bepa_torchrl.experts.readers.events import input_events, same_input
from bepa_torchrl.experts.readers.executed import executed_actions
from osworld_gym.types import Action
from osworld_gym.uitars.pyautogui import to_pyautogui


def test_events_by_hand() -> None:
    source = "import pyautogui; pyautogui.moveTo(1, 2); pyautogui.click(1, 2); pyautogui.hotkey('ctrl', 'c')"
    assert input_events([source]) == [
        ("move", 1, 2),
        *[(True, "left"), (False, "left")],
        *[(True, "ctrl"), (True, "c"), (False, "c"), (False, "ctrl")],
    ]
    assert input_events(["pyautogui.scroll(-3, x=1, y=2); pyautogui.vscroll(-4)"]) == [("move", 1, 2), ("scroll", -7)]
    assert input_events(["pyautogui.write('A\\n')"]) == input_events(["pyautogui.press(['A', 'Return'])"])
    assert input_events(["pyautogui.mouseUp(); time.sleep(1)"]) == []
    assert input_events(["os.system('x')"]) is None
    assert input_events(["pyautogui.click(x)"]) is None


@pytest.mark.parametrize(
    "source",
    [
        "pyautogui.click(100.6, 200.2, clicks=2, button='left')",
        "pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, duration=1.0, button='left'); pyautogui.mouseUp()",
        "pyautogui.mouseDown(1, 2); pyautogui.mouseUp(5, 6)",
        "pyautogui.click(1, 2); pyautogui.hotkey('ctrl', 'a'); pyautogui.press('backspace'); pyautogui.write('a B<');",
        "pyautogui.keyDown('ctrl'); pyautogui.press('c'); pyautogui.keyUp('ctrl')",
        "pyautogui.moveTo(5, 6); time.sleep(0.5); pyautogui.vscroll(-10)",
        "pyperclip.copy('öl'); pyautogui.hotkey('ctrl', 'v'); pyautogui.press('enter')",
        "pyautogui.press('enter', presses=3)",
        "pyautogui.hotkey('win'); time.sleep(0.5); pyautogui.write('calc'); time.sleep(1.0); pyautogui.hotkey('enter')",
        "pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, duration=1.); pyautogui.mouseUp(); ",
        "pyautogui.hotkey('command', 'space', interval=0.5); pyautogui.typewrite('mail'); pyautogui.press('enter')",
        "time.sleep(2)",
    ],
)
def test_what_is_exact(source: str) -> None:
    actions, reason = executed_actions([source])
    assert actions
    assert reason == ""


@pytest.mark.parametrize(
    ("source", "actions"),
    [
        ("pyautogui.moveTo(5, 6); pyautogui.vscroll(-1)", [Action("scroll", start=(5, 6), direction="down")]),
        ("pyautogui.vscroll(-100)", [Action("scroll", direction="down")] * 10),
        ("pyautogui.click(1, 2); pyautogui.moveTo(300, 400)", [Action("click", start=(1, 2))]),
        ("pyautogui.press('A')", [Action("hotkey", key="a")]),
        ("pyautogui.press('\\n')", [Action("hotkey", key="space")]),
        (
            "pyautogui.keyDown('alt'); pyautogui.press('tab'); pyautogui.press('tab'); pyautogui.keyUp('alt')",
            [Action("hotkey", key="alt tab")] * 2,
        ),
        ("pyautogui.moveTo(9, 9); pyautogui.click(1, 2)", [Action("click", start=(1, 2))]),
    ],
)
def test_what_is_not(source: str, actions: list[Action]) -> None:
    assert not same_input([source], actions)


points = st.tuples(st.integers(0, 2000), st.integers(0, 1000))
ACTIONS = st.one_of(
    st.builds(Action, st.sampled_from(["click", "left_double", "right_single", "left_triple"]), start=points),
    st.builds(Action, st.just("drag"), start=points, end=points),
    st.builds(Action, st.just("type"), content=st.text(min_size=1, max_size=10)),
    st.builds(Action, st.just("hotkey"), key=st.sampled_from(["ctrl c", "alt tab", "enter", "ctrl shift t", "f5"])),
    st.builds(Action, st.just("scroll"), start=points, direction=st.sampled_from(["up", "down", "left", "right"])),
)


@given(st.lists(ACTIONS, min_size=1, max_size=4))
@examples(200)
def test_what_actions_are_written_as_is_their_input(actions: list[Action]) -> None:
    assert same_input([to_pyautogui(actions)], actions)


@given(st.lists(ACTIONS, min_size=1, max_size=3), st.lists(ACTIONS, min_size=1, max_size=3))
@examples(200)
def test_another_action_is_noticed(actions: list[Action], others: list[Action]) -> None:
    more = [*actions, *others]
    assert not same_input([to_pyautogui(more)], actions) or input_events([to_pyautogui(others)]) == []
