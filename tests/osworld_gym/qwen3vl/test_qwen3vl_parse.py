"""Qwen3-VL's calls of ``computer_use`` give the actions of the table; anything else is a ParseError."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym import ParseError
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.qwen3vl import parse, thought_of
from osworld_gym.testing.scripted_desktop import ScriptedDesktop, count_task
from osworld_gym.types import Action, StopReason
from osworld_gym.uitars import ImageScaling


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'computer_use', 'arguments': arguments})}\n</tool_call>"


def response(**arguments: Any) -> str:
    return f"Action: Mute it.\n{call(**arguments)}"


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "left_click", "coordinate": [72, 40]}, Action("click", start=(72, 40))),
        ({"action": "left_click"}, Action("click")),
        ({"action": "double_click", "coordinate": [72.5, 40]}, Action("left_double", start=(72.5, 40))),
        ({"action": "triple_click", "coordinate": [72, 40]}, Action("left_triple", start=(72, 40))),
        ({"action": "right_click", "coordinate": [72, 40]}, Action("right_single", start=(72, 40))),
        ({"action": "middle_click", "coordinate": [72, 40]}, Action("middle_single", start=(72, 40))),
        ({"action": "mouse_move", "coordinate": [0, 1000]}, Action("hover", start=(0, 1000))),
        ({"action": "left_click_drag", "coordinate": [30, 40]}, Action("drag", end=(30, 40))),
        ({"action": "scroll", "pixels": -3}, Action("scroll", direction="down", clicks=3)),
        ({"action": "scroll", "pixels": 4.9}, Action("scroll", direction="up", clicks=4)),
        ({"action": "scroll", "pixels": -99999}, Action("scroll", direction="down", clicks=1000)),
        ({"action": "hscroll", "pixels": 2}, Action("scroll", direction="right", clicks=2)),
        ({"action": "key", "keys": ["ctrl", "shift", "T"]}, Action("hotkey", key="ctrl shift t")),
        ({"action": "key", "keys": ["A"]}, Action("hotkey", key="shift a")),
        ({"action": "key", "keys": ["Page_Down"]}, Action("hotkey", key="pagedown")),
        ({"action": "key", "keys": "Return"}, Action("hotkey", key="enter")),
        ({"action": "key", "keys": [" "]}, Action("hotkey", key="space")),
        ({"action": "key", "keys": ["ctrl", "+"]}, Action("hotkey", key="ctrl +")),
        ({"action": "key_down", "keys": ["shift"]}, Action("keydown", key="shift")),
        ({"action": "key_up", "keys": ["shift"]}, Action("keyup", key="shift")),
        ({"action": "type", "text": "it's\n<b> 你好"}, Action("type", content="it's\n<b> 你好")),
        ({"action": "wait", "time": 3}, Action("wait")),
        ({"action": "terminate", "status": "success"}, Action("finished")),
        ({"action": "terminate"}, Action("finished")),
        ({"action": "terminate", "status": "failure"}, Action("call_user")),
        ({"action": "answer", "text": "42"}, Action("finished", content="42")),
    ],
)
def test_each_call(arguments: dict[str, Any], action: Action) -> None:
    assert parse(response(**arguments)).actions == (action,)


def test_calls_in_order_and_a_move_before_an_action_at_the_pointer() -> None:
    text = "Action: Drag it.\n" + "\n".join(
        [
            call(action="mouse_move", coordinate=[1, 2]),
            call(action="left_click_drag", coordinate=[30, 40]),
            call(action="mouse_move", coordinate=[5, 6]),
            call(action="left_click", coordinate=[7, 8]),
            call(action="scroll", pixels=-2),
        ]
    )
    assert parse(text).actions == (
        Action("drag", start=(1, 2), end=(30, 40)),
        Action("hover", start=(5, 6)),
        Action("click", start=(7, 8)),
        Action("scroll", direction="down", clicks=2),
    )


@pytest.mark.parametrize(
    "text",
    [
        'Action: Go.\n<tool_call>{"name": "computer_use", "arguments": {"action": "wait"}}</tool_call>',
        'Action: Go.\n<tool_call>\n{"name": "computer_use",\n "arguments": {"action": "wait"}}',
        'Action: Go.\n{"name": "computer_use", "arguments": {"action": "wait"}}',
    ],
)
def test_other_spellings_of_a_call(text: str) -> None:
    assert parse(text).actions == (Action("wait"),)
    assert parse(text).thought == "Go."


def test_the_thought_is_the_text_before_the_call() -> None:
    text = f"<think>\nThe sound is on.\n</think>\n\n{response(action='wait')}"
    assert parse(text).thought == "The sound is on.\n\n\nMute it."
    assert thought_of("no call") == "no call"


@pytest.mark.parametrize("words", ["I answer with a <tool_call> block.", "<tool_call></tool_call> comes last."])
def test_a_tag_in_the_thought_is_no_call(words: str) -> None:
    """As in ``mm_agents/qwen3vl_agent.py``: a line begins with a call's tag."""
    text = f"Look: {words}\n</think>\n\n{response(action='left_click', coordinate=[72, 40])}"
    assert parse(text).actions == (Action("click", start=(72, 40)),)
    assert parse(text).thought == f"Look: {words}\n\n\nMute it."
    inline = '<tool_call>{"name": "computer_use", "arguments": {"action": "wait"}}'
    assert parse(f"Go. {inline}").actions == (Action("wait"),)


def test_half_a_surrogate_pair_is_replaced() -> None:
    text = '<tool_call>{"name": "computer_use", "arguments": {"action": "type", "text": "a\\ud83d"}}</tool_call>'
    assert parse(text).actions == (Action("type", content="a\ufffd"),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "not_text"),
        ("x" * 200_000, "too_long"),
        ("", "no_action"),
        ("Action: Click.", "no_action"),
        ("<tool_call>left_click</tool_call>", "bad_call"),
        ("<tool_call>[1]</tool_call>", "bad_call"),
        ("<tool_call>" + "[" * 50_000 + "</tool_call>", "bad_call"),
        ('<tool_call>{"name": "bash", "arguments": {"action": "wait"}}</tool_call>', "bad_call"),
        ('<tool_call>{"name": "computer_use", "arguments": {"action": 3}}</tool_call>', "bad_call"),
        (response(action="screenshot"), "unknown_action"),
        (response(action="mouse_move"), "missing_argument"),
        (response(action="left_click_drag"), "missing_argument"),
        (response(action="scroll"), "missing_argument"),
        (response(action="type"), "missing_argument"),
        (response(action="key"), "missing_argument"),
        (response(action="left_click", coordinate=[1]), "bad_coordinate"),
        (response(action="left_click", coordinate="1, 2"), "bad_coordinate"),
        (response(action="left_click", coordinate=[1, 2, 3, 4]), "bad_coordinate"),
        (response(action="left_click", coordinate=[True, 2]), "bad_coordinate"),
        (response(action="left_click", coordinate=[1e300, 2]), "bad_coordinate"),
        (response(action="left_click", coordinate=[10**400, 2]), "bad_coordinate"),
        (response(action="left_click", coordinate=[float("nan"), 2]), "bad_coordinate"),
        (response(action="scroll", pixels="down"), "bad_number"),
        (response(action="scroll", pixels=float("inf")), "bad_number"),
        (response(action="type", text=3), "bad_string"),
        (response(action="key", keys=[3]), "bad_string"),
        (response(action="key", keys=[]), "empty_key"),
        (response(action="key", keys=["no_such_key"]), "unknown_key"),
        (response(action="key", keys=["a"] * 11), "too_many_keys"),
        (response(action="terminate", status="done"), "bad_status"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.reason == reason


FRAGMENTS = [
    *("Action: ", "<tool_call>", "</tool_call>", "\n", '{"name": "computer_use", "arguments": ', "}", '{"action": "'),
    *("left_click", '"', ", ", '"coordinate": ', "[1, 2]", "key", '"keys": ["a"]', "<think>"),
]


@examples(200)
@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=8)), max_size=14))
def test_any_text_parses_or_is_a_parse_error(parts: list[str]) -> None:
    text = "".join(parts)
    try:
        actions: tuple[Any, ...] = parse(text).actions
    except ParseError as error:
        actions = (error.reason,)
    assert actions
    assert isinstance(thought_of(text), str)


@pytest.mark.parametrize(
    "text",
    ["\n" * 99_000, "action:" + " " * 90_000 + "x", '{"arguments"' * 8_000, "<tool_call>" * 9_000, "{" * 99_000 + "}"],
    ids=["lines", "spaces", "bare", "tags", "braces"],
)
def test_long_texts_are_read_in_linear_time(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ParseError):
        parse(text)
    thought_of(text)
    assert time.perf_counter() - start < 2


def test_an_episode_reads_it_in_thousandths() -> None:
    options = EpisodeOptions(max_steps=4, action_text="qwen3vl", scaling=ImageScaling(relative=1000))
    desktop = ScriptedDesktop()
    episode = Episode(desktop, options)
    episode.begin(count_task(1), seed=0)
    width, height = desktop.screen_size
    click = episode.act(response(action="left_click", coordinate=[500, 250]))
    assert click.actions == (Action("click", start=(width / 2, height / 4)),)
    assert episode.act("Thought: x\nAction: wait()").parse_error == "no_action"
    end = episode.act(response(action="terminate", status="success"))
    assert (end.stop, end.verdict and end.verdict.score) == (StopReason.finished, 1.0)


@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        ({"action": "click", "coordinate": [1, 2]}, Action("click", start=(1, 2))),
        ({"action": "click"}, Action("click")),
        ({"action": "drag", "coordinate": [1, 2]}, Action("drag", end=(1, 2))),
        ({"action": "key", "keys": ["keys=[ctrl", "c]"]}, Action("hotkey", key="ctrl c")),
        ({"action": "key", "keys": ["keys=['ctrl'", "'C']"]}, Action("hotkey", key="ctrl shift c")),
        ({"action": "key", "keys": ["ctrl+]"]}, Action("hotkey", key="ctrl ]")),
        ({"action": "key", "keys": ["ctrl", "]"]}, Action("hotkey", key="ctrl ]")),
        ({"action": "key", "keys": ["["]}, Action("hotkey", key="[")),
        ({"action": "key", "keys": [" "]}, Action("hotkey", key="space")),
    ],
)
def test_what_osworld_s_agents_of_this_text_read_too(arguments: dict[str, Any], action: Action) -> None:
    assert parse(response(**arguments)).actions == (action,)
