"""The parser reads every spelling that UI-TARS uses, and raises ParseError for anything else."""

from __future__ import annotations

import contextlib
import random
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym import Action, ParseError
from osworld_gym.uitars import action_space_text, format_response, parse, thought_of
from osworld_gym.uitars.actions import ACTIONS, GRAMMAR
from osworld_gym.uitars.keys import split_keys

BOX = "start_box='<|box_start|>(72,40)<|box_end|>'"


def one(call: str, **options) -> Action:
    (action,) = parse(f"Thought: go\nAction: {call}", **options).actions
    return action


@pytest.mark.parametrize(
    "value",
    [
        "'<|box_start|>(72,40)<|box_end|>'",
        "'(72,40)'",
        '"(72, 40)"',
        "'[72,40]'",
        "'72 40'",
        "'<point>72 40</point>'",
        "'[70,38,74,42]'",
        "'<|box_start|>[70, 38, 74, 42]<|box_end|>'",
        "'(70,38),(74,42)'",
        "'<bbox>70 38 74 42</bbox>'",
        "'(72.0,40.0)'",
    ],
)
def test_every_spelling_of_a_box_parses_to_the_same_point(value: str) -> None:
    assert one(f"click(start_box={value})") == Action("click", start=(72.0, 40.0))


def test_point_arguments_of_the_newer_prompts() -> None:
    assert one("click(point='<point>1 2</point>')").start == (1.0, 2.0)
    drag = one("drag(start_point='<point>1 2</point>', end_point='<point>3 4</point>')")
    assert (drag.start, drag.end) == ((1.0, 2.0), (3.0, 4.0))


def test_centre_of_an_odd_box_is_half_a_pixel() -> None:
    assert one("click(start_box='[1,2,4,9]')").start == (2.5, 5.5)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"'a\'b'", "a'b"),
        (r"'say \"hi\"'", 'say "hi"'),
        (r"'ls\n'", "ls\n"),
        (r"'a\nb\n'", "a\nb\n"),
        (r"'a\\nb'", r"a\nb"),
        (r"'C:\dir'", r"C:\dir"),
        (r"'\t1'", "\t1"),
        ("'it's'", "it's"),
        ("'print('a')'", "print('a')"),
        ('"it\'s"', "it's"),
        ("'你好，世界'", "你好，世界"),
        ("' lead'", " lead"),
        (r"'\n'", "\n"),
        ("''", ""),
        ("'a\nb'", "a\nb"),
        (r"'fun\\n'", r"fun\n"),
        ("'f(x), y'", "f(x), y"),
    ],
)
def test_text_escapes(written: str, meant: str) -> None:
    assert one(f"type(content={written})").content == meant


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("ctrl c", "ctrl c"),
        ("Ctrl+C", "ctrl c"),
        ("ctrl + c", "ctrl c"),
        ("ctrl+ c", "ctrl c"),
        ("ctrl-c", "ctrl c"),
        ("ctrl -", "ctrl -"),
        ("ctrl +", "ctrl +"),
        ("ctrl++", "ctrl +"),
        ("+", "+"),
        ("shift arrowleft", "shift left"),
        ("page_down", "pagedown"),
        ("PageDown", "pagedown"),
        ("cmd space", "win space"),
        ("control shift esc", "ctrl shift esc"),
        ("Return", "enter"),
    ],
)
def test_key_names(written: str, keys: str) -> None:
    assert one(f"hotkey(key='{written}')").key == keys


@pytest.mark.parametrize("kind", ["hotkey", "keydown", "keyup"])
@pytest.mark.parametrize("key", ["'", "ctrl '", "' a", "' )", '"', "' \"", "\\", "\\ '", "ctrl shift '"])
def test_a_quote_is_a_key(kind: str, key: str) -> None:
    """Ctrl and the quote show formulas in a spreadsheet; an expert's trace with it is written and read."""
    written = format_response("go", [Action(kind, key=key)])
    assert parse(written).actions == (Action(kind, key=key),)
    assert one(r"hotkey(key='\')").key == "\\"  # not escaped


def test_thought_and_several_actions() -> None:
    text = f"Thought: 先点击。\nthen type\nAction: click({BOX})\n\ntype(content='a')\nAction: wait()"
    parsed = parse(text)
    assert parsed.thought == "先点击。\nthen type"
    assert [a.kind for a in parsed.actions] == ["click", "type", "wait"]


def test_blank_line_inside_a_text_is_text() -> None:
    assert one("type(content='a\n\nb')").content == "a\n\nb"


def test_action_on_the_thoughts_line() -> None:
    assert parse("Thought: x Action: wait()").thought == "x"


def test_remark_fence_and_semicolon_after_a_call() -> None:
    assert one("wait() #Sleep for 5s") == Action("wait")
    assert parse("```\nThought: x\nAction: wait();\n```").actions == (Action("wait"),)


def test_aliases_of_the_official_table() -> None:
    assert one(f"left_single({BOX})").kind == "click"
    assert one("select(start_box='(1,2)', end_box='(3,4)')").kind == "drag"
    assert one("press(key='enter')") == Action("hotkey", key="enter")
    assert one("hotkey(hotkey='ctrl s')").key == "ctrl s"


def test_what_the_official_agent_accepts_beyond_its_prompt() -> None:
    assert one(f"hover({BOX})") == Action("hover", start=(72.0, 40.0))
    assert one("keydown(key='shift')") == Action("keydown", key="shift")
    assert one("keyup(key='Control')") == Action("keyup", key="ctrl")
    with pytest.raises(ParseError, match="missing_argument"):
        one("hover()")
    assert not {"hover", "keydown", "keyup"} & {line.split("(")[0] for line in action_space_text().splitlines()}


def test_scroll_needs_no_box_and_a_direction() -> None:
    assert one("scroll(direction='Down')") == Action("scroll", direction="down")
    assert one(f"scroll({BOX}, direction='left')").start == (72.0, 40.0)


def test_mobile_actions_only_on_mobile() -> None:
    assert one("press_back()", platform="mobile") == Action("press_back")
    assert one("open_app(app_name='Clock')", platform="mobile").content == "Clock"
    for call in ("press_back()", "long_press(start_box='(1,2)')"):
        with pytest.raises(ParseError, match="unknown_action"):
            one(call)
    with pytest.raises(ParseError, match="unknown_action"):
        one("hotkey(key='a')", platform="mobile")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_action"),
        ("Thought: done", "no_action"),
        ("click(start_box='(1,2)')", "no_action"),
        ("Action:", "no_action"),
        ("Action: I will click", "bad_call"),
        ("Action: click", "bad_call"),
        ("Action: click(", "missing_argument"),
        ("Action: click('(1,2)')", "bad_call"),
        ("Action: click(start_box=(1,2))", "bad_call"),
        ("Action: click(start_box='(1,2)", "bad_string"),
        ("Action: click()", "missing_argument"),
        ("Action: drag(start_box='(1,2)')", "missing_argument"),
        ("Action: hotkey()", "missing_argument"),
        ("Action: click(start_box='')", "bad_box"),
        ("Action: click(start_box='(1)')", "bad_box"),
        ("Action: click(start_box='(1,2,3)')", "bad_box"),
        ("Action: click(start_box='(nan,2)')", "bad_box"),
        ("Action: click(start_box='(inf,2)')", "bad_box"),
        ("Action: click(start_box='(1e99,2)')", "bad_box"),
        ("Action: click(start_box='(１,２)')", "bad_box"),
        ("Action: click(start_box='(9999999999999999,2)')", "bad_box"),
        ("Action: click(start_box='(100001,2)')", "bad_coordinate"),
        ("Action: click(box='(1,2)')", "missing_argument"),
        ("Action: click(start_box='(1,2)1')", "bad_box"),
        ("Action: scroll(direction='sideways')", "bad_direction"),
        ("Action: hotkey(key=' ')", "empty_key"),
        ("Action: hotkey(key='" + "ctrl-" * 19_000 + "a')", "too_many_keys"),
        ("Action: grab(start_box='(1,2)')", "unknown_action"),
        ("Action: __import__('os').system('ls')", "unknown_action"),
        ("Action: click(start_box='(1,2)') and go", "trailing_text"),
        ("Action: wait() wait()", "trailing_text"),
        ("Action: wait()\nThat is all.", "trailing_text"),
        ("Action: " + "a" * 100_001, "too_long"),
        (None, "not_text"),
        (b"Action: wait()", "not_text"),
    ],
)
def test_everything_else_is_a_parse_error(text, reason: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert caught.value.reason == reason
    assert isinstance(caught.value.text, str)


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_broken_responses_raise_only_parse_errors(count: int) -> None:
    generator = random.Random(0)
    seeds = [
        f"Thought: click mute\nAction: click({BOX})",
        "Action: drag(start_box='[1,2,3,4]', end_box='<point>5 6</point>')",
        "Thought: 你好\nAction: type(content='it\\'s \\\"x\\\" \\n 世界')\n\nhotkey(key='ctrl+c')\nAction: finished()",
        "Thought: x\nAction: scroll(start_box='(1,2)', direction='down') # go\ncall_user()",
    ]
    words = (
        """Action: Thought: <|box_start|> <|box_end|> <point> start_box= click( type(content=' 1e999 nan ``` Action："""
        """ <|im_end|> [EOS] computer. \\ud83d \\x41 wait finished \nThought: \nAction:"""
    )
    pieces = [*"()[]{}'\"\\,=#:;+-.0123456789 \n\t\0aé中\ud800\x1b", *words.split(), "\n\n", "\\u4e2d", "'''", "9" * 30]
    parsed = 0
    for _ in range(count):
        text = generator.choice(seeds)
        for _ in range(generator.randint(1, 4)):
            at, cut = generator.randrange(len(text) + 1), generator.choice((0, 0, 1, 1, 3, 20))
            text = text[:at] + (generator.choice(pieces) if generator.random() < 0.7 else "") + text[at + cut :]
        with contextlib.suppress(ParseError):
            for action in parse(text).actions:
                assert action.kind in GRAMMAR["desktop"]
                assert all(abs(v) <= 100_000 for p in (action.start, action.end) if p for v in p)
            parsed += 1
    assert 0.05 * count < parsed < 0.9 * count  # the mutations reach both outcomes


LONG = 90_000


@pytest.mark.parametrize(
    "text",
    [
        "Action: type(content='" + unit * (LONG // len(unit))
        for unit in (
            "'",
            "' ",
            "')",
            "')#",
            "',",
            "', a",
            "\\",
            "\\'",
            "'" + " " * 99,
            "')" + " " * 99,
            "'," + "a" * 99,
        )
    ]
    + [
        "Action: wait()" + "<|im_end|> " * (LONG // 11),
        "Action: wait()\n" + "Thought: a\nAction: wait()\n" * (LONG // 25),
    ]
    + [
        "Action: wait()\n" + "Thought: " * (LONG // 9),
        "Action: " + "a." * (LONG // 2),
        "Action: wait" + " " * LONG + "x",
    ]
    + ["Action: wait(" + "a='', " * (LONG // 6), "Action: type(content='" + "\\ud83d" * (LONG // 6)]
    + ["Action: wait()" + " " * LONG + "x", "Action: wait(" + " " * LONG + "x", "Action: wait();" + " " * LONG + "x"]
    + ["Action:" * (LONG // 7), "\n" * LONG, (" " * 50 + "\n") * (LONG // 51), "Action: " + "```" * (LONG // 3)]
    + ["Action: click(start_box='(" + unit * (LONG // 2) + ")')" for unit in ("1 ", "1.", "11", "  ", "()")]
    + ["Action: hotkey(key='" + unit * 60 + "')" for unit in ("a ", "+", "a-", "+ ", "a+")],
)
def test_no_response_takes_long(text: str) -> None:
    """Linear in the length: the slowest of these takes 0.02 s here; a quadratic pattern would take seconds."""
    begin = process_time()
    with contextlib.suppress(ParseError):
        parse(text)
    thought_of(text)
    assert process_time() - begin < 1.0


@examples(300)
@given(st.one_of(st.text(), st.text().map("Thought: a\nAction: {}".format), st.binary(), st.none()))
def test_any_value_parses_or_raises_parse_error(text) -> None:
    with contextlib.suppress(ParseError):
        parse(text)
    if isinstance(text, str):
        assert isinstance(thought_of(text), str)


_POINTS = st.tuples(st.integers(-99, 9999).map(float), st.integers(-99, 9999).map(float))
_FIELDS = {
    "box": _POINTS,
    "text": st.text(),
    "keys": st.lists(st.sampled_from(["ctrl", "alt", "a", "f5", "+", "-", "left"]), min_size=1, max_size=3)
    .map(" ".join)
    .filter(lambda keys: split_keys(keys) == tuple(keys.split())),  # "left ctrl" is one key
    "direction": st.sampled_from(["up", "down", "left", "right"]),
}


@st.composite
def _actions(draw, platform: str) -> Action:
    spec = draw(st.sampled_from([spec for spec in ACTIONS if platform in spec.platforms]))
    return Action(spec.name, **{a.field: draw(_FIELDS[a.kind]) for a in spec.arguments})


@examples(300)
@given(st.data(), st.sampled_from(["desktop", "mobile"]), st.text())
def test_format_then_parse_returns_the_same_actions(data, platform: str, thought: str) -> None:
    actions = tuple(data.draw(st.lists(_actions(platform), min_size=1, max_size=3)))
    parsed = parse(format_response(thought, actions), platform=platform)
    assert parsed.actions == actions


def test_format_is_the_canonical_spelling() -> None:
    text = format_response("click mute", [Action("click", start=(71.5, 40.2))])
    assert text == "Thought: click mute\nAction: click(start_box='<|box_start|>(72,40)<|box_end|>')"
    assert format_response("", [Action("wait"), Action("type", content="it's")]) == (
        "Action: wait()\n\ntype(content='it\\'s')"
    )
    thought = "first\nAction: wait()"
    assert parse(format_response(thought, [Action("finished")])).actions == (Action("finished"),)
    with pytest.raises(ValueError, match="start_box"):
        format_response("x", [Action("click")])
