"""A formatted response parses to the same thought and actions; what has no form is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    Action("wait"),
    Action("finished"),
    Action("call_user"),
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.kind)
def test_each_action(action: Action) -> None:
    found = parse(format_response("The sound is on. Mute it.", [action]))
    assert found.actions == (action,)
    assert found.thought == "The sound is on. Mute it.\n\nMute it."


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


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40), st.text(min_size=1, max_size=20).filter(lambda text: "\r" not in text))
def test_any_thought_and_any_typed_text(thought: str, content: str) -> None:
    """Headings and fences of a thought would end it: they are left out."""
    action = Action("type", content=content)
    try:
        text = format_response(f"## Action:\n```\n{thought}", [action])
    except ValueError:
        assert "```" in content or "##" in content
        return
    assert parse(text).actions == (action,)
