"""OpenCUA's responses give the actions of equivalent UI-TARS responses; anything else is a ParseError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym import ParseError
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.opencua import parse
from osworld_gym.testing.scripted_desktop import ScriptedDesktop, count_task
from osworld_gym.types import Action, StopReason
from osworld_gym.uitars import parse as parse_uitars

FORMAT = "## Thought:\nThe sound is on.\n\n## Action:\nMute it.\n\n## Code:\n```python\n{}\n```\n"


def response(code: str) -> str:
    return FORMAT.format(code)


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ("pyautogui.click(x=72, y=40)", "click(start_box='(72,40)')"),
        ("pyautogui.click(72, 40)", "click(start_box='(72,40)')"),
        ("pyautogui.doubleClick(x=72, y=40)", "left_double(start_box='(72,40)')"),
        ("computer.triple_click(x=72, y=40)", "left_triple(start_box='(72,40)')"),
        ("pyautogui.tripleClick(x=72, y=40)", "left_triple(start_box='(72,40)')"),
        ("pyautogui.click(x=72, y=40, clicks=3)", "left_triple(start_box='(72,40)')"),
        ("pyautogui.rightClick(x=72, y=40)", "right_single(start_box='(72,40)')"),
        ("pyautogui.click(x=72, y=40, button='right')", "right_single(start_box='(72,40)')"),
        ("pyautogui.moveTo(x=72, y=40)", "hover(start_box='(72,40)')"),
        (
            "pyautogui.moveTo(x=1, y=2)\npyautogui.dragTo(x=30, y=40, button='left')",
            "drag(start_box='(1,2)', end_box='(30,40)')",
        ),
        ("pyautogui.write(message='it\\'s')", 'type(content="it\'s")'),
        ("pyautogui.write(message='ls')\npyautogui.press('enter')", "type(content='ls\\n')"),
        ("pyautogui.hotkey(['ctrl', 's'])", "hotkey(key='ctrl s')"),
        ("pyautogui.hotkey('ctrl', 's')", "hotkey(key='ctrl s')"),
        ("pyautogui.hotkey(keys=['ctrl', 's'])", "hotkey(key='ctrl s')"),
        ("pyautogui.hotkey(key1='ctrl', key2='s')", "hotkey(key='ctrl s')"),
        ("pyautogui.press(key='enter')", "hotkey(key='enter')"),
        ("pyautogui.press(button='enter')", "hotkey(key='enter')"),
        ("pyautogui.write(text='a')", "type(content='a')"),
        ("pyautogui.write(content='a')", "type(content='a')"),
        ("pyautogui.hotkey('ctrl', 'page_down')", "hotkey(key='ctrl pagedown')"),
        (
            "pyautogui.moveTo(x=1, y=2)\npyautogui.moveTo(x=9, y=8)\npyautogui.click()",
            "hover(start_box='(1,2)')\nclick(start_box='(9,8)')",
        ),
        ("pyautogui.keyDown('ctrl')", "keydown(key='ctrl')"),
        ("pyautogui.press(keys='tab', presses=2)", "hotkey(key='tab')\n\nhotkey(key='tab')"),
        ("pyautogui.scroll(-5)", "scroll(direction='down')"),
        (
            "pyautogui.moveTo(x=9, y=8)\npyautogui.scroll(10)",
            "\n".join(["scroll(start_box='(9,8)', direction='up')"] * 2),
        ),
        ("computer.wait()", "wait()"),
        ("computer.terminate(status='success')", "finished()"),
        ("computer.terminate('failure')", "call_user()"),
        ("# the task is done\ncomputer.terminate(status='success')", "finished()"),
        ("pyautogui.click(x=72, y=40)\ncomputer.terminate(status='success')", "finished()"),
        ("computer.terminate(status='success')\ncomputer.wait()", "wait()"),
        ("pyautogui.write(message='computer.terminate()')", "type(content='computer.terminate()')"),
    ],
)
def test_the_actions_are_those_of_ui_tars(code: str, same: str) -> None:
    assert parse(response(code)).actions == parse_uitars(f"Thought: x\nAction: {same}").actions


@pytest.mark.parametrize(
    ("code", "action"),
    [
        ("pyautogui.scroll(-3)", Action("scroll", direction="down", clicks=3)),
        ("pyautogui.hscroll(12)", Action("scroll", direction="right", clicks=12)),
        ("pyautogui.middleClick(x=72, y=40)", Action("middle_single", start=(72, 40))),
        ("pyautogui.click()", Action("click")),
    ],
)
def test_what_ui_tars_has_no_text_for_is_performed_too(code: str, action: Action) -> None:
    assert parse(response(code)).actions == (action,)


def test_a_code_block_in_the_thought_is_not_the_action() -> None:
    """As in ``mm_agents/opencua/opencua_agent.py``: the last block of the whole text counts."""
    thought = "## Thought:\nIt says\n```\nls\n```\nin the terminal.\n\n"
    found = parse(f"{thought}## Action:\nMute it.\n\n## Code:\n```python\npyautogui.click(72, 40)\n```")
    assert found.actions == (Action("click", start=(72, 40)),)
    assert found.thought == "It says\n```\nls\n```\nin the terminal.\n\nMute it."


def test_thought_and_action_sentence_are_the_thought() -> None:
    text = "## Observation:\nA panel.\n\n" + response("computer.wait()")
    assert parse(text).thought == "The sound is on.\n\nMute it."
    assert parse("## Action:\nWait.\n\n## Code:\n```code\ncomputer.wait()\n```").thought == "Wait."


def test_the_last_code_block_counts() -> None:
    text = response("pyautogui.click(x=1, y=2)") + "Or rather:\n```python\npyautogui.click(x=3, y=4)\n```"
    assert parse(text).actions[0].start == (3, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "not_text"),
        ("x" * 200_000, "too_long"),
        ("", "no_action"),
        ("## Action:\nClick.\n", "no_action"),
        ("## Thought:\nno action sentence\n```python\npyautogui.click(1, 2)\n```", "no_action"),
        (response(""), "no_action"),
        (response("computer.terminate()"), "bad_call"),
        (response("computer.terminate(status='done')"), "bad_call"),
        (response("computer.launch('xterm')"), "bad_call"),
        (response("computer.triple_click(x=1)"), "bad_call"),
        (response("computer.triple_click(x='1', y=2)"), "bad_call"),
        (response("computer.triple_click(x=1e300, y=2)"), "bad_call"),
        (response("pyautogui.tripleClick(x=1, y=2, button='right')"), "not_convertible"),
        (response("pyautogui.write(words='a')"), "bad_source"),
        (response("pyautogui.press('volumeup')"), "not_convertible"),
        (response("pyautogui.click(x=1, y=2, clicks=4)"), "not_convertible"),
        (response("pyautogui.moveTo(x=1e300, y=2)"), "bad_source"),
        (response("__import__('os').system('true')"), "bad_source"),
        (response("pyautogui.click(x=open('f').read(), y=2)"), "bad_source"),
        (response("for _ in range(9): pyautogui.click(1, 2)"), "bad_source"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.reason == reason


FRAGMENTS = [
    "## Action:\n",
    "## Thought:",
    "```",
    "```python\n",
    "pyautogui.",
    "click",
    "(",
    ")",
    "x=1",
    ",",
    "computer.",
]


@examples(200)
@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8)), max_size=12))
def test_any_text_parses_or_is_a_parse_error(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        actions = parse(text).actions
    except ParseError as error:
        actions = (error.reason,)
    assert actions


def test_an_episode_reads_it() -> None:
    options = EpisodeOptions(max_steps=4, action_text="opencua")
    episode = Episode(ScriptedDesktop(), options)
    episode.begin(count_task(1), seed=0)
    click = episode.act(response("pyautogui.click(x=3, y=4)"))
    assert (click.parse_error, click.stop) == (None, None)
    triple = episode.act(response("computer.triple_click(x=3, y=4)"))
    assert triple.actions == (Action("left_triple", start=(3, 4)),)
    assert episode.act("Thought: x\nAction: wait()").parse_error == "no_action"
    end = episode.act(response("computer.terminate(status='success')"))
    assert (end.stop, end.verdict and end.verdict.score) == (StopReason.finished, 1.0)
    with pytest.raises(ValueError, match="action_text: expected one of uitars, opencua, qwen3vl; got 'other'"):
        EpisodeOptions(action_text="other")
