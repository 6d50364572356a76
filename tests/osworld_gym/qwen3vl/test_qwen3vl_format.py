"""A formatted response parses to the same thought and actions; what has no form is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym.qwen3vl import format_response, parse
from osworld_gym.types import Action

ACTIONS = [
    *(Action(kind, start=(72, 40)) for kind in ("click", "left_double", "left_triple", "right_single")),
    Action("middle_single", start=(72, 40)),
    Action("click"),
    Action("hover", start=(72, 40)),
    Action("drag", start=(1, 2), end=(30, 40)),
    Action("drag", end=(30, 40)),
    Action("hotkey", key="ctrl shift t"),
    Action("hotkey", key="ctrl +"),
    Action("keydown", key="shift"),
    Action("keyup", key="shift"),
    Action("type", content='it\'s\n"5 > 4"\tü </tool_call><tool_call>\n'),
    Action("type", content=""),
    *(Action("scroll", start=(9, 8), direction=way, clicks=3) for way in ("up", "down", "left", "right")),
    Action("scroll", direction="up", clicks=5),
    Action("wait"),
    Action("finished"),
    Action("call_user"),
]


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_each_action(action: Action) -> None:
    found = parse(format_response("The sound is on. Mute it.", [action]))
    assert found.actions == (action,)
    assert found.thought == "The sound is on. Mute it."


def test_all_actions_in_one_response() -> None:
    assert parse(format_response("Go.", ACTIONS)).actions == tuple(ACTIONS)


def test_the_text_by_hand() -> None:
    actions = [
        Action("scroll", start=(71.5, 40.2), direction="down"),
        Action("scroll", start=(71.5, 40.2), direction="down"),
    ]
    assert format_response("The list\nis long.", actions) == (
        "Action: The list is long.\n"
        '<tool_call>\n{"name": "computer_use", "arguments": {"action": "mouse_move", "coordinate": [72, 40]}}\n'
        '</tool_call>\n<tool_call>\n{"name": "computer_use", "arguments": {"action": "scroll", "pixels": -10}}\n'
        "</tool_call>"
    )
    assert format_response("", [Action("left_double", start=(1, 2))]).startswith("Action: left double.\n<tool_call>\n")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([], "at least one action"),
        ([Action("press_home")], "no form of press_home"),
        ([Action("hover")], "requires a point"),
        ([Action("drag", start=(1, 2))], "requires a point"),
        ([Action("scroll")], "requires the direction"),
        ([Action("hotkey", key=" ")], "requires a key"),
    ],
)
def test_what_has_no_form_is_refused(actions: list[Action], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        format_response("Do it.", actions)


PIECES = [
    "Action:",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "\n",
    " ",
    '{"name": 1, "arguments": {}}',
    "\u2028",
    "\\",
]
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=8).map("".join)


@examples(300)
@given(TEXTS, TEXTS)
def test_any_thought_and_any_text(thought: str, content: str) -> None:
    """A thought or a typed text cannot end a call, nor begin one."""
    typed = Action("type", content=content)
    assert parse(format_response(thought, [typed, Action("wait")])).actions == (typed, Action("wait"))
