"""What is read of pyautogui source is the same input, event by event; what is not is named."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from input_events import action_events, source_events
from property_tests import examples

from osworld_gym import Action, ParseError
from osworld_gym.uitars.join_input import PASTE
from osworld_gym.uitars.keys import split_keys
from osworld_gym.uitars.pyautogui import from_pyautogui, read_pyautogui, to_pyautogui

POINTS = ("1, 2", "x=1, y=2", "30, 40", "5, 6")
KEYS = ("a", "A", "v", "c", "!", "ctrl", "shift", "alt", "tab", "enter", "\n", "\t", " ", "left", "pagedown", "f5", ",")
TEXTS = ("x", "Hi", "a b", "a\tb", "ls\n", "\n", "<", "é", "")


def statement(chance: random.Random) -> str:
    """A statement; its arguments are few, so that statements belong together now and then."""
    point = chance.choice((*POINTS, ""))
    button = chance.choice(("", "", ", button='left'", ", button='right'", ", button='middle'"))
    key, keys = repr(chance.choice(KEYS)), [chance.choice(KEYS) for _ in range(chance.randint(1, 3))]
    held = repr(chance.choice(("shift", "ctrl", "alt")))
    clicks = chance.choice((-100, -20, -10, -5, -1, 0, 1, 3, 5, 10, 50))
    text = repr(chance.choice(TEXTS))
    return chance.choice(
        (
            f"pyautogui.moveTo({chance.choice(POINTS)})",
            f"pyautogui.move({chance.choice(('3, 4', '0, 0'))})",
            f"pyautogui.click({point})",
            f"pyautogui.click({chance.choice(POINTS[:1])}, clicks={chance.randint(0, 4)}{button})",
            f"pyautogui.doubleClick(1, 2{button})",
            f"pyautogui.tripleClick(1, 2{button})",
            f"pyautogui.rightClick({point})",
            f"pyautogui.dragTo({chance.choice(POINTS)}{button})",
            "pyautogui.drag(3, 4)",
            f"pyautogui.mouseDown({point})",
            f"pyautogui.mouseUp({point})",
            f"pyautogui.write({text})",
            f"pyautogui.typewrite({keys!r})".replace("typewrite", "write"),
            f"pyautogui.press({key})",
            f"pyautogui.press({key}, presses={chance.randint(0, 3)})",
            f"pyautogui.press({keys!r})",
            f"pyautogui.hotkey({', '.join(map(repr, keys))})",
            f"pyautogui.hotkey({keys!r})",
            "pyautogui.hotkey('ctrl', 'v')",
            f"pyautogui.keyDown({held})",
            f"pyautogui.keyUp({held})",
            f"pyautogui.keyDown({key})",
            f"pyautogui.scroll({clicks})",
            f"pyautogui.scroll({clicks}, {chance.choice(POINTS)})",
            f"pyautogui.hscroll({clicks})",
            f"pyperclip.copy({text})",
            "time.sleep(1)",
        )
    )


def outcome(source: str, *, every: bool = False) -> str:
    """``exact``, ``inexact`` or the reason of the refusal; fails if it is said to be exact and is not."""
    try:
        reading = read_pyautogui(source, triple_click=True, every=every)
    except ParseError as error:
        return error.reason
    if reading.inexact:
        with pytest.raises(ParseError, match="not_exact"):
            from_pyautogui(source, triple_click=True, every=every, exact=True)
        return "inexact"
    assert from_pyautogui(source, triple_click=True, every=every, exact=True) == reading.actions
    assert action_events(reading.actions) == source_events(source), reading.actions
    return "exact"


@examples(300)
@given(st.integers(0, 2**32), st.integers(1, 7), st.booleans())
def test_any_statements_are_the_same_input_or_it_is_said(seed: int, count: int, every: bool) -> None:
    chance = random.Random(seed)
    assert outcome("\n".join(statement(chance) for _ in range(count)), every=every) in (
        "exact",
        "inexact",
        "bad_source",
        "not_convertible",
    )


def test_most_pairs_of_statements_are_exact() -> None:
    chance = random.Random(0)
    found = [outcome("\n".join(statement(chance) for _ in range(2))) for _ in range(2000)]
    counts = {name: found.count(name) for name in ("exact", "inexact", "not_convertible")}
    assert counts["exact"] > 700, counts
    assert counts["inexact"] > 100, counts


@pytest.mark.parametrize(
    ("source", "actions"),
    [
        ("pyautogui.press('A')", [Action("hotkey", key="shift a")]),
        ("pyautogui.press(['H', 'i'])", [Action("type", content="Hi")]),
        (
            "pyautogui.press('h'); pyautogui.press(' '); pyautogui.press('\\''); pyautogui.press('enter')",
            [Action("type", content="h '\n")],
        ),
        ("pyautogui.press('a'); pyautogui.press('enter')", [Action("hotkey", key="a"), Action("hotkey", key="enter")]),
        ("pyautogui.hotkey('a'); pyautogui.hotkey('b')", [Action("hotkey", key="a"), Action("hotkey", key="b")]),
        (
            "pyautogui.keyDown('ctrl'); pyautogui.press(['k', 's']); pyautogui.keyUp('ctrl')",
            [
                Action("keydown", key="ctrl"),
                Action("hotkey", key="k"),
                Action("hotkey", key="s"),
                Action("keyup", key="ctrl"),
            ],
        ),
        ("pyautogui.press('\\n')", [Action("hotkey", key="enter")]),
        ("pyautogui.press('\\t')", [Action("hotkey", key="tab")]),
        ("pyautogui.press(' ')", [Action("hotkey", key="space")]),
        ("pyautogui.hotkey('ctrl', '\\t')", [Action("hotkey", key="ctrl tab")]),
        ("pyautogui.hotkey('ctrl', 'A')", [Action("hotkey", key="ctrl shift a")]),
        ("pyautogui.write(['a', 'left'])", [Action("hotkey", key="a"), Action("hotkey", key="left")]),
        (
            "pyautogui.keyDown('alt'); pyautogui.press('tab', presses=2); pyautogui.keyUp('alt')",
            [
                Action("keydown", key="alt"),
                Action("hotkey", key="tab"),
                Action("hotkey", key="tab"),
                Action("keyup", key="alt"),
            ],
        ),
        (
            "pyautogui.keyDown('ctrl'); pyautogui.click(1, 2); pyautogui.keyUp('ctrl')",
            [Action("keydown", key="ctrl"), Action("click", start=(1, 2)), Action("keyup", key="ctrl")],
        ),
        (
            "pyautogui.keyDown('ctrl'); pyautogui.keyDown('shift'); pyautogui.press('t'); "
            "pyautogui.keyUp('shift'); pyautogui.keyUp('ctrl')",
            [Action("hotkey", key="ctrl shift t")],
        ),
        ("pyautogui.keyDown('ctrl')", [Action("keydown", key="ctrl")]),
        ("pyautogui.moveTo(1, 2)", [Action("hover", start=(1, 2))]),
        (
            "pyautogui.click(1, 2); pyautogui.moveTo(3, 4)",
            [Action("click", start=(1, 2)), Action("hover", start=(3, 4))],
        ),
        (
            "pyautogui.moveTo(1, 2); pyautogui.moveTo(3, 4); pyautogui.click()",
            [Action("hover", start=(1, 2)), Action("click", start=(3, 4))],
        ),
        (
            "pyautogui.moveTo(1, 2); pyautogui.write('a')",
            [Action("hover", start=(1, 2)), Action("type", content="a")],
        ),
        ("pyautogui.click(1, 2, 2, 0.1, 'left')", [Action("left_double", start=(1, 2))]),
        (
            "pyautogui.scroll(10, 1, 2)",
            [Action("scroll", start=(1, 2), direction="up")] * 2,
        ),
        (
            "pyperclip.copy('ü'); pyautogui.keyDown('ctrl'); pyautogui.press('v'); pyautogui.keyUp('ctrl')",
            [Action("type", content="ü")],
        ),
    ],
)
def test_what_is_exact(source: str, actions: list[Action]) -> None:
    assert from_pyautogui(source, exact=True) == actions


@pytest.mark.parametrize(
    ("source", "kind", "why"),
    [
        ("pyautogui.scroll(-1)", "scroll", r"scroll\(-1\): 1 wheel clicks are read as 5"),
        ("pyautogui.scroll(-100)", "scroll", "100 wheel clicks are read as 50"),
        ("pyautogui.hscroll(7)", "scroll", "7 wheel clicks are read as 5"),
        ("pyautogui.write('é')", "type", "types only ASCII"),
        ("pyautogui.press('page_down')", "hotkey", "has no key 'page_down'; read as pagedown"),
        ("pyautogui.hotkey('cmd', 'c')", "hotkey", "has no key 'cmd'; read as win"),
        ("pyautogui.press('option')", "hotkey", "has no key 'option'; read as alt"),
        ("pyautogui.press(key='enter')", "hotkey", "has no argument key"),
        ("pyautogui.write('a'); pyperclip.copy('b')", "type", "copy.*: the clipboard's content is not pasted here"),
        ("pyperclip.copy('a\\nb'); pyautogui.hotkey('ctrl', 'v')", "type", "line ends and tabs are read as keys"),
        (
            "pyperclip.copy('a'); pyautogui.hotkey('ctrl', 'c'); pyautogui.hotkey('ctrl', 'v')",
            "hotkey",
            "what is pasted is not known",
        ),
        (
            "pyperclip.copy('a'); pyautogui.keyDown('ctrl'); pyautogui.press('v', presses=2); pyautogui.keyUp('ctrl')",
            "keydown",
            "a paste between held keys",
        ),
        (
            "pyautogui.mouseDown(1, 2); pyautogui.moveTo(3, 4); pyautogui.mouseUp(5, 6)",
            "drag",
            "a drag through 3 points",
        ),
    ],
)
def test_what_is_not_exact_is_named(source: str, kind: str, why: str) -> None:
    with pytest.raises(ParseError, match="not_exact") as caught:
        from_pyautogui(source, exact=True)
    assert caught.value.reason == "not_exact"
    assert from_pyautogui(source)[0].kind == kind
    with pytest.raises(ParseError, match=why):
        from_pyautogui(source, exact=True)


@pytest.mark.parametrize(
    ("source", "actions", "otherwise"),
    [
        ("pyautogui.scroll(-3)", [Action("scroll", direction="down", clicks=3)], "not_exact"),
        ("pyautogui.hscroll(70, 1, 2)", [Action("scroll", start=(1, 2), direction="right", clicks=70)], "not_exact"),
        ("pyautogui.scroll(10)", [Action("scroll", direction="up")] * 2, ""),
        ("pyautogui.middleClick(1, 2)", [Action("middle_single", start=(1, 2))], "bad_source"),
        ("pyautogui.click(button='middle')", [Action("middle_single")], "not_convertible"),
        ("pyautogui.click(1, 2, clicks=3)", [Action("left_triple", start=(1, 2))], "not_convertible"),
        ("pyautogui.click()", [Action("click")], "not_convertible"),
        ("pyautogui.rightClick()", [Action("right_single")], "not_convertible"),
        ("pyautogui.dragTo(3, 4, duration=0.5)", [Action("drag", end=(3, 4))], "not_convertible"),
    ],
)
def test_what_only_the_whole_table_has(source: str, actions: list[Action], otherwise: str) -> None:
    assert from_pyautogui(source, every=True, exact=True) == actions
    assert from_pyautogui(to_pyautogui(actions), every=True, exact=True) == actions
    if otherwise:
        with pytest.raises(ParseError) as caught:
            from_pyautogui(source, exact=True)
        assert caught.value.reason == otherwise


@pytest.mark.parametrize("source", ["pyautogui.mouseDown()", "pyautogui.scroll(-1001)", "pyautogui.drag(3, 4)"])
def test_what_no_action_has(source: str) -> None:
    with pytest.raises(ParseError):
        from_pyautogui(source, every=True, exact=True)


_AT = st.tuples(st.integers(0, 3).map(float), st.integers(0, 3).map(float))
_HOTKEYS = (
    st.lists(
        st.sampled_from(["ctrl", "shift", "alt", "a", "t", "tab", "enter", "left", "+", ",", "<", "f5"]),
        min_size=1,
        max_size=3,
        unique=True,
    )
    .map(" ".join)
    .filter(lambda keys: keys not in PASTE and split_keys(keys) == tuple(keys.split()))
)
_TYPED = st.text(
    st.characters(codec="ascii", categories=["L", "N", "P", "S", "Zs"], include_characters="\n\t"), min_size=1
)
_ONE_KEY = st.sampled_from(["ctrl", "shift", "alt", "left", "a"])
ACTIONS = st.one_of(
    st.builds(
        lambda kind, at: Action(kind, start=at),
        st.sampled_from(["click", "left_double", "left_triple", "right_single", "hover"]),
        _AT,
    ),
    st.builds(lambda a, b: Action("drag", start=a, end=b), _AT, _AT),
    st.builds(
        lambda at, way: Action("scroll", start=at, direction=way),
        st.one_of(st.none(), _AT),
        st.sampled_from(["up", "down", "left", "right"]),
    ),
    st.builds(lambda keys: Action("hotkey", key=keys), _HOTKEYS),
    st.builds(lambda kind, key: Action(kind, key=key), st.sampled_from(["keydown", "keyup"]), _ONE_KEY),
    st.builds(lambda text: Action("type", content=text), _TYPED),
)


@examples(300)
@given(st.lists(ACTIONS, min_size=1, max_size=6))
def test_source_of_any_actions_is_read_back_as_the_same_input(actions: list[Action]) -> None:
    source = to_pyautogui(actions)
    reading = read_pyautogui(source, triple_click=True)
    assert reading.inexact == ()
    assert action_events(reading.actions) == source_events(source) == action_events(actions)


@examples(300)
@given(ACTIONS)
def test_source_of_one_action_is_read_back_as_it_is(action: Action) -> None:
    found = from_pyautogui(to_pyautogui([action]), triple_click=True, exact=True)
    if action.kind == "type" and ("\t" in action.content or action.content.startswith("\n")):
        assert action_events(found) == action_events([action])  # enter and tab first are keys, not text
    elif (action.kind, action.start) == ("drag", action.end):
        assert found == [Action("click", start=action.start)]
    elif action.key in ("<", "shift ,"):
        assert found in ([action], [Action("type", content="<")])
    else:
        assert found == [action]
