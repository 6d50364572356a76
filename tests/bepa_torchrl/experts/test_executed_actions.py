"""The actions of what was executed, and whether they are all of it."""

from __future__ import annotations

import pytest

from bepa_torchrl.experts.readers.executed import executed_actions
from osworld_gym.types import Action


@pytest.mark.parametrize(
    "source",
    [
        "pyautogui.click(100.6, 200.2, clicks=2, button='left')",
        "pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, duration=1.0, button='left'); pyautogui.mouseUp()",
        "pyautogui.mouseDown(1, 2); pyautogui.mouseUp(5, 6)",
        "pyautogui.click(1, 2); pyautogui.hotkey('ctrl', 'a'); pyautogui.press('backspace'); pyautogui.write('a B<');",
        "pyautogui.keyDown('ctrl'); pyautogui.press('c'); pyautogui.keyUp('ctrl')",
        "pyautogui.keyDown('alt'); pyautogui.press('tab', presses=2); pyautogui.keyUp('alt')",
        "pyautogui.moveTo(5, 6); time.sleep(0.5); pyautogui.vscroll(-10)",
        "pyautogui.click(1, 2); pyautogui.moveTo(300, 400)",
        "pyperclip.copy('öl'); pyautogui.hotkey('ctrl', 'v'); pyautogui.press('enter')",
        "pyautogui.press('enter', presses=3)",
        "pyautogui.press('A')",
        "pyautogui.hotkey('win'); time.sleep(0.5); pyautogui.write('calc'); time.sleep(1.0); pyautogui.hotkey('enter')",
        "pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, duration=1.); pyautogui.mouseUp(); ",
        "time.sleep(2)",
    ],
)
def test_what_is_exact(source: str) -> None:
    actions, reason = executed_actions([source])
    assert actions
    assert reason == ""


@pytest.mark.parametrize(
    ("source", "action"),
    [
        # Claude's runner writes command for the Super key, OpenAI's super: pyautogui presses nothing at either
        ("pyautogui.keyDown('command'); pyautogui.keyUp('command')", Action("hotkey", key="win")),
        ("pyautogui.hotkey('super')", Action("hotkey", key="win")),
        ("pyautogui.hotkey('ctrl', 'plus')", Action("hotkey", key="ctrl +")),
        ("pyautogui.write('café')", Action("type", content="café")),
        ("pyperclip.copy('a\\nb'); pyautogui.hotkey('ctrl', 'v')", Action("type", content="a\nb")),
        ("pyautogui.write('a'); pyperclip.copy('b')", Action("type", content="a")),
        ("pyautogui.mouseDown(1, 2); pyautogui.moveTo(3, 4); pyautogui.mouseUp(5, 6)", Action("drag", (1, 2), (5, 6))),
    ],
)
def test_what_the_code_did_not_do_is_not_exact(source: str, action: Action) -> None:
    assert executed_actions([source]) == ((action,), "not_exact")


def test_one_source_of_several_that_is_not_exact_is_enough() -> None:
    actions, reason = executed_actions(["pyautogui.press('page_down')", "pyautogui.click(1, 2)", ""])
    assert (actions[1:], reason) == ((Action("click", start=(1.0, 2.0)),), "not_exact")


def test_text_that_is_pressed_key_by_key_is_typed() -> None:
    presses = [f"pyautogui.press({character!r})" for character in "Hello, World: 5 < 6!"]
    actions, reason = executed_actions(["\n".join([*presses, "pyautogui.press('enter')"])])
    assert (actions, reason) == ((Action("type", content="Hello, World: 5 < 6!\n"),), "")


@pytest.mark.parametrize(("source", "reason"), [("os.system('x')", "bad_source"), ("CALL_USER", "bad_source")])
def test_what_cannot_be_read_has_no_action(source: str, reason: str) -> None:
    assert executed_actions(["pyautogui.click(1, 2)", source]) == ((), reason)
