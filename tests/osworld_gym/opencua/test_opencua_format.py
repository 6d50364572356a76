"""A formatted response parses to the same thought and actions; what has no form is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym.opencua import format_response, parse
from osworld_gym.types import Action

ACTIONS = [
    Action("click", start=(72, 40)),
    Action("left_double", start=(72, 40)),
    Action("left_triple", start=(72, 40)),
    Action("right_single", start=(72, 40)),
    Action("hover", start=(72, 40)),
    Action("drag", start=(1, 2), end=(30, 40)),
    Action("hotkey", key="ctrl shift t"),
    Action("type", content='it\'s\n"5 > 4"\tü\n'),
    Action("scroll", start=(9, 8), direction="down"),
    Action("scroll", start=(9, 8), direction="left"),
    Action("scroll", direction="up"),
    Action("scroll", start=(9, 8), direction="down", clicks=3),
    Action("middle_single", start=(72, 40)),
    Action("wait"),
    Action("finished"),
    Action("call_user"),
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.kind)
def test_each_action(action: Action) -> None:
    found = parse(format_response("The sound is on. Mute it.", [action]))
    assert found.actions == (action,)
    assert found.thought == "The sound is on. Mute it.\n\nMute it."


def test_wheel_clicks_that_are_several_scrolls() -> None:
    text = format_response("Look.", [Action("scroll", start=(9, 8), direction="down", clicks=10)])
    assert "pyautogui.scroll(-10)" in text
    assert parse(text).actions == (Action("scroll", start=(9, 8), direction="down"),) * 2


def test_the_text_by_hand() -> None:
    actions = [Action("click", start=(71.5, 40.2)), Action("hotkey", key="f5")]
    text = format_response("The sound is on. Mute it.", actions)
    assert text == (
        "## Thought:\nThe sound is on. Mute it.\n\n## Action:\nMute it.\n\n"
        "## Code:\n```python\npyautogui.click(x=72, y=40)\npyautogui.hotkey(['f5'])\n```\n"
    )
    assert format_response("", [Action("left_double", start=(1, 2))]).startswith("## Action:\nleft double.\n\n## Code:")


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([], "at least one action"),
        ([Action("keydown", key="shift")], "no form of keydown"),
        ([Action("press_home")], "no form of press_home"),
        ([Action("click", start=(1, 2)), Action("finished")], "no form in one code block: click, finished"),
        ([Action("wait"), Action("click", start=(1, 2))], "no form in one code block: wait, click"),
        ([Action("click", start=(1, 2)), Action("left_triple", start=(1, 2))], "no form in one code block"),
        ([Action("type", content="")], "no form in one code block: type"),
        ([Action("click")], "requires a point"),
    ],
)
def test_what_has_no_form_is_refused(actions: list[Action], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        format_response("Do it.", actions)


def keystrokes(actions: Sequence[Action]) -> list[str]:
    """What is typed, by key: a hotkey's name, or a character of a text, where enter and tab are characters."""
    keys: list[str] = []
    for action in actions:
        assert action.kind in ("type", "hotkey")
        if action.kind == "type":
            keys += action.content or ""
        else:
            keys.append({"enter": "\n", "tab": "\t"}.get(action.key or "", action.key or ""))
    return keys


THOUGHTS = st.lists(
    st.one_of(
        st.sampled_from(["## Action:", "##", "#", " ", "\n", "```", "``", "`", "Go. ", "。", "Code"]),
        st.text(max_size=3),
    ),
    max_size=8,
).map("".join)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(["\n", "\t", "\r\n", "\\", "'", '"', "```", "`", "## Code:", "\u2028"]), st.text(max_size=3)
    ),
    min_size=1,
    max_size=8,
).map("".join)
TYPED = st.lists(
    st.one_of(
        TEXTS.map(lambda text: Action("type", content=text)),
        st.sampled_from(["enter", "tab", "ctrl v", "a", "ctrl enter"]).map(lambda key: Action("hotkey", key=key)),
    ),
    min_size=1,
    max_size=4,
)


@examples(300)
@given(THOUGHTS, TYPED)
def test_any_thought_and_anything_typed(thought: str, actions: list[Action]) -> None:
    """Headings and fences of a thought would end it: they are left out."""
    if keystrokes(actions):
        assert keystrokes(parse(format_response(thought, actions)).actions) == keystrokes(actions)


@pytest.mark.parametrize("content", ["\n", "\ntext", "\n\n", "\t", "a\n\nb", "```sh\nls\n```\n", "\r\n", "\\`"])
def test_texts_that_were_refused_or_changed(content: str) -> None:
    typed = Action("type", content=content)
    for before in ([], [Action("click", start=(1, 2))]):
        found = parse(format_response("Do it.", [*before, typed])).actions
        assert found[: len(before)] == tuple(before)
        assert keystrokes(found[len(before) :]) == keystrokes([typed])


def test_a_thought_cannot_open_a_section() -> None:
    for thought in (" ## Action:\nx", "```## Action:", "# ## Code:", "Go. ## Action:", "#"):
        assert parse(format_response(thought, [Action("wait")])).actions == (Action("wait"),)
