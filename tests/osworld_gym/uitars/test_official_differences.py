"""Each row of the table "Differences from OSWorld's parser" in docs/uitars.md: responses, and what is read of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from osworld_gym import Action, ParseError
from osworld_gym.uitars import parse

DOCUMENT = Path(__file__).parents[3] / "docs" / "uitars.md"
CLICK, OTHER = Action("click", start=(1, 2)), Action("click", start=(3, 4))
WAIT, FINISHED = Action("wait"), Action("finished")


def typed(text: str) -> list[Action]:
    return [Action("type", content=text)]


def pressed(keys: str) -> list[Action]:
    return [Action("hotkey", key=keys)]


#: first cell of the row → (what follows ``Action:``, the actions, or the reason of the ParseError)
ROWS: dict[str, list[tuple[str, list[Action] | str]]] = {
    "`<|box_start|>`, `[x,y]`, `x y`, `<point>`": [
        ("click(start_box='<|box_start|>(1,2)<|box_end|>')", [CLICK]),
        ("click(start_box='[1,2]')", [CLICK]),
        ("click(start_box='1 2')", [CLICK]),
        ("click(point='<point>1 2</point>')", [CLICK]),
    ],
    "`(x,y` or `x,y)`": [("click(start_box='(1,2')", [CLICK]), ("click(start_box='1,2)')", [CLICK])],
    "`ctrl+c`, `ctrl,c`, `shift arrowleft`, `cmd`, `page_down`, `page down`, `Control_L c`": [
        ("hotkey(key='ctrl+c')", pressed("ctrl c")),
        ("hotkey(key='ctrl,c')", pressed("ctrl c")),
        ("hotkey(key='shift arrowleft')", pressed("shift left")),
        ("hotkey(key='cmd')", pressed("win")),
        ("hotkey(key='page_down')", pressed("pagedown")),
        ("hotkey(key='page down')", pressed("pagedown")),
        ("hotkey(key='Control_L c')", pressed("ctrl c")),
    ],
    "a key that is not known": [
        ("hotkey(key='ctrl foo')", "unknown_key"),
        ("hotkey(key='volumeup')", "unknown_key"),
        ("keydown(key='shft')", "unknown_key"),
    ],
    "`press(key=…)`": [("press(key='enter')", pressed("enter"))],
    "`release(key=…)`": [("release(key='shift')", [Action("keyup", key="shift")])],
    "text with line breaks, blank lines or only `\\n`, leading spaces, quotes": [
        ("type(content='a\nb')", typed("a\nb")),
        ("type(content='a\n\nb')", typed("a\n\nb")),
        ("type(content='\\n')", typed("\n")),
        ("type(content='  a')", typed("  a")),
        ("type(content='it's')", typed("it's")),
    ],
    "`\\u4f60`, `\\x41` in text": [
        ("type(content='\\u4f60\\x41')", typed("你A")),
        ("type(content='\\ud83d\\ude00\\U0001f600')", typed("😀😀")),
        ("type(content='\\\\u4f60 C:\\users \\ud83d')", typed("\\u4f60 C:\\users \\ud83d")),
    ],
    "`<` and characters that are not printable ASCII, without `input_swap`": [("type(content='<ü')", typed("<ü"))],
    "`\\t` in typed text": [("type(content='a\\tb')", typed("a\tb"))],
    "two actions on two lines; two `Action:`": [
        ("click(start_box='(1,2)')\nclick(start_box='(3,4)')", [CLICK, OTHER]),
        ("click(start_box='(1,2)')\nAction: click(start_box='(3,4)')", [CLICK, OTHER]),
    ],
    "a second `Thought:` and `Action:`": [
        ("click(start_box='(1,2)')\nThought: b\nAction: click(start_box='(3,4)')", [OTHER]),
        (
            "wait()\n\nThought: b\nc\nAction: wait()\nThought: d\nAction: click(start_box='(3,4)')\n\nwait()",
            [OTHER, WAIT],
        ),
        ("type(content='a\nThought: b\nAction: c')", typed("a\nThought: b\nAction: c")),
        ("wait()\nThought: b", "trailing_text"),
    ],
    "an argument that the action does not have; one twice": [
        ("click(start_box='(1,2)', end_box='(3,4)', amount='3')", [CLICK]),
        ("wait(time='5')", [WAIT]),
        ("call_user(content='help')", [Action("call_user")]),
        ("finished(answer='42')", [FINISHED]),
        ("finished('42')", [Action("finished", content="42")]),
        ("click(start_box='(1,2)', point='(3,4)')", [OTHER]),
        ("wait(time=5)", "bad_call"),
    ],
    "a comma after the last argument": [
        ("click(start_box='(1,2)',)", [CLICK]),
        ("type(content='a, b',)", typed("a, b")),
        ("wait(,)", "bad_call"),
    ],
    "no parenthesis at the end of the response": [
        ("click(start_box='(1,2)'", [CLICK]),
        ("type(content='a'", typed("a")),
        ("wait(", [WAIT]),
        ("click(start_box='(1,2)'\nwait()", "bad_call"),
    ],
    "no quote at the end of the response": [
        ("click(start_box='(1,2)", "bad_string"),
        ("type(content='a)", "bad_string"),
    ],
    "`wait`, `finished`, `call_user` without parentheses": [
        ("wait", [WAIT]),
        ("finished # done", [FINISHED]),
        ("click(start_box='(1,2)')\n\ncall_user", [CLICK, Action("call_user")]),
        ("hotkey", "bad_call"),
        ("wait for it", "bad_call"),
    ],
    "`<|im_end|>` and `[EOS]` at the end": [
        ("click(start_box='(1,2)')<|im_end|>", [CLICK]),
        ("wait()\n[EOS] <|endoftext|>\n", [WAIT]),
        ("type(content='<|im_end|>')<|im_end|>", typed("<|im_end|>")),
        ("wait()<|im_end|> so", "trailing_text"),
    ],
    "`computer.click(…)`": [("computer.click(start_box='(1,2)')", [CLICK])],
    "`scroll` left or right": [("scroll(direction='left')", [Action("scroll", direction="left")])],
    "`direction='scroll down'`": [
        ("scroll(direction='scroll down')", [Action("scroll", direction="down")]),
        ("scroll(direction='Upwards')", [Action("scroll", direction="up")]),
        ("scroll(direction='sideways')", "bad_direction"),
    ],
    "`ctrl A`, `A`": [("hotkey(key='ctrl A')", pressed("ctrl a")), ("hotkey(key='A')", pressed("a"))],
    "`finished()` after other actions": [("click(start_box='(1,2)')\n\nfinished()", [CLICK, FINISHED])],
    "`wait()` or `call_user()` with other actions": [
        ("click(start_box='(1,2)')\n\nwait()\n\nclick(start_box='(3,4)')", [CLICK, WAIT, OTHER]),
        ("call_user()\n\nclick(start_box='(1,2)')", [Action("call_user"), CLICK]),
    ],
    "`error_env()`": [("error_env()", "unknown_action")],
    "an unknown action, `drag` with one box, `hotkey(key='')`": [
        ("grab()", "unknown_action"),
        ("click(start_box='(1,2)')\n\ngrab()", "trailing_text"),
        ("drag(start_box='(1,2)')", "missing_argument"),
        ("hotkey(key='')", "empty_key"),
    ],
    "three quotes in a thought": [],
    "coordinates such as 960.6": [("click(start_box='(960.6,2)')", [Action("click", start=(960.6, 2))])],
    "`hover`, `keydown`, `keyup`": [
        ("hover(start_box='(1,2)')", [Action("hover", start=(1, 2))]),
        ("keydown(key='shift')\n\nkeyup(key='shift')", [Action("keydown", key="shift"), Action("keyup", key="shift")]),
    ],
    "`keydown(key='ctrl c')`": [("keydown(key='ctrl c')", [Action("keydown", key="ctrl c")])],
}


@pytest.mark.parametrize(("call", "expected"), [case for cases in ROWS.values() for case in cases])
def test_each_row_of_the_table(call: str, expected: list[Action] | str) -> None:
    response = f"Thought: a\nAction: {call}"
    if isinstance(expected, str):
        with pytest.raises(ParseError) as caught:
            parse(response)
        assert caught.value.reason == expected
    else:
        assert parse(response) == parse(response + "\n")
        assert list(parse(response).actions) == expected
        assert parse(response).thought == "a"


def test_quotes_and_the_word_action_in_a_thought() -> None:
    assert parse("Thought: '''a'''\nAction: wait()").actions == (WAIT,)
    assert parse("Thought: xAction: wait()").actions == (WAIT,)


def test_the_document_has_these_rows() -> None:
    section = DOCUMENT.read_text(encoding="utf-8").split("## Differences from OSWorld's parser")[1].split("\n## ")[0]
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == list(ROWS)
    assert {len(row) for row in rows[2:]} == {3}
