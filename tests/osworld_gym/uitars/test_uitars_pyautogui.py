"""Actions → pyautogui source and back; the source is executed against a recorder, never against a screen."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym import Action, ParseError
from osworld_gym.uitars.actions import GRAMMAR
from osworld_gym.uitars.pyautogui import from_pyautogui, to_pyautogui
from osworld_gym.uitars.read_pyautogui import _HANDLERS


def calls(source: str) -> list[tuple[str, list[Any], dict[str, Any]]]:
    """Name, arguments and keywords of each call of the source."""
    found = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import):
            continue
        assert isinstance(statement, ast.Expr)
        call = statement.value
        assert isinstance(call, ast.Call)
        found.append(
            (
                ast.unparse(call.func),
                [ast.literal_eval(a) for a in call.args],
                {str(k.arg): ast.literal_eval(k.value) for k in call.keywords},
            )
        )
    return found


def test_each_action_as_source() -> None:
    source = to_pyautogui(
        [
            Action("click", start=(954.4, 533.5)),
            Action("left_double", start=(1, 2)),
            Action("left_triple", start=(1, 2)),
            Action("right_single", start=(3, 4)),
            Action("drag", start=(1, 2), end=(3, 4)),
            Action("scroll", start=(5, 6), direction="down"),
            Action("scroll", direction="right"),
            Action("hotkey", key="ctrl+shift arrowleft"),
            Action("hover", start=(7, 8)),
            Action("keydown", key="shift"),
            Action("keyup", key="shift"),
            Action("wait"),
        ]
    )
    assert source.splitlines() == [
        "import pyautogui",
        "import time",
        "pyautogui.click(954, 534, button='left')",
        "pyautogui.doubleClick(1, 2, button='left')",
        "pyautogui.tripleClick(1, 2, button='left')",
        "pyautogui.click(3, 4, button='right')",
        "pyautogui.moveTo(1, 2)",
        "pyautogui.dragTo(3, 4, duration=1.0, button='left')",
        "pyautogui.moveTo(5, 6)",
        "pyautogui.scroll(-5)",
        "pyautogui.hscroll(5)",
        "pyautogui.hotkey('ctrl', 'shift', 'left')",
        "pyautogui.moveTo(7, 8)",
        "pyautogui.keyDown('shift')",
        "pyautogui.keyUp('shift')",
        "time.sleep(5)",
    ]


def test_text_is_typed_pasted_and_entered_in_pieces() -> None:
    found = calls(to_pyautogui([Action("type", content="ls 'a'\n你好 <b>\tx\n")]))
    assert [(name, arguments) for name, arguments, _ in found] == [
        ("pyautogui.write", ["ls 'a'"]),
        ("pyautogui.press", ["enter"]),
        ("pyperclip.copy", ["你好"]),
        ("pyautogui.hotkey", ["ctrl", "v"]),
        ("time.sleep", [0.5]),
        ("pyautogui.write", [" "]),
        ("pyautogui.hotkey", ["shift", ","]),
        ("pyautogui.write", ["b>"]),
        ("pyautogui.press", ["tab"]),
        ("pyautogui.write", ["x"]),
        ("pyautogui.press", ["enter"]),
    ]


def test_only_needed_modules_are_imported() -> None:
    assert to_pyautogui([Action("type", content="time.sleep pyperclip.")]).startswith(
        "import pyautogui\npyautogui.write"
    )
    assert to_pyautogui([Action("finished"), Action("call_user")]) == ""


def test_mobile_actions_have_no_source() -> None:
    with pytest.raises(ValueError, match="no pyautogui source for 'press_back'"):
        to_pyautogui([Action("press_back")])


@examples(300)
@given(st.text())
def test_any_text_is_safe_source_and_comes_back(text: str) -> None:
    source = to_pyautogui([Action("type", content=text)])
    found = calls(source) if source else []
    typed = {"enter": "\n", "tab": "\t"}
    parts = []
    for name, arguments, _ in found:
        if name == "pyautogui.press":
            parts.append(typed[arguments[0]])
        elif name in ("pyautogui.write", "pyperclip.copy"):
            parts.append(arguments[0])
        elif arguments == ["shift", ","]:
            parts.append("<")
    assert "".join(parts) == text.replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize(
    "action",
    [
        Action("click", start=(1, 2)),
        Action("left_double", start=(1, 2)),
        Action("right_single", start=(1, 2)),
        Action("drag", start=(1, 2), end=(3, 4)),
        Action("hotkey", key="ctrl shift t"),
        Action("hotkey", key="ctrl +"),
        Action("type", content="it's 你好\n"),
        Action("type", content="wc -l <in.txt\n"),
        Action("type", content="<"),
        Action("scroll", start=(1, 2), direction="left"),
        Action("scroll", direction="up"),
        Action("hover", start=(1, 2)),
        Action("keydown", key="ctrl shift"),
        Action("keyup", key="shift"),
        Action("wait"),
    ],
)
def test_source_reads_back_as_the_action(action: Action) -> None:
    assert from_pyautogui(to_pyautogui([action])) == [action]


def test_agent_s2s_own_idioms() -> None:
    read = from_pyautogui
    assert read("import pyautogui; pyautogui.click(1265, 245, clicks=1, button='left'); ") == [
        Action("click", start=(1265, 245))
    ]
    assert read("pyautogui.click(5, 6, clicks=2, button='left')") == [Action("left_double", start=(5, 6))]
    assert read("pyautogui.click(5, 6, clicks=1, button='right')") == [Action("right_single", start=(5, 6))]
    source = "import pyautogui; pyautogui.click(5, 6); pyautogui.hotkey('ctrl', 'a'); pyautogui.press('backspace'); "
    assert read(source + "pyautogui.write('x y'); pyautogui.press('enter'); ") == [
        Action("click", start=(5, 6)),
        Action("hotkey", key="ctrl a"),
        Action("hotkey", key="backspace"),
        Action("type", content="x y\n"),
    ]
    source = "import pyautogui; import time; pyautogui.moveTo(5, 6); time.sleep(0.5); pyautogui.vscroll(-10)"
    assert read(source) == [Action("scroll", start=(5, 6), direction="down")] * 2
    assert read(
        "pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, duration=1., button='left'); pyautogui.mouseUp(); "
    ) == [Action("drag", start=(1, 2), end=(3, 4))]
    assert read("pyautogui.keyDown('ctrl'); pyautogui.press('c'); pyautogui.keyUp('ctrl')") == [
        Action("hotkey", key="ctrl c")
    ]
    assert read("pyautogui.keyDown('alt'); pyautogui.keyUp('alt')") == [Action("hotkey", key="alt")]
    source = "import pyautogui; import time; pyautogui.hotkey('win'); time.sleep(0.5); pyautogui.write('gimp'); "
    assert read(source + "time.sleep(1.0); pyautogui.hotkey('enter'); time.sleep(0.5)") == [
        Action("hotkey", key="win"),
        Action("type", content="gimp\n"),
    ]
    assert read("import time; time.sleep(1.5);") == [Action("wait")]
    assert [read(word) for word in ("DONE", "FAIL", "WAIT")] == [
        [Action("finished")],
        [Action("call_user")],
        [Action("wait")],
    ]
    assert read("pyautogui.mouseDown(1, 2); pyautogui.moveTo(3, 4); pyautogui.mouseUp()") == [
        Action("drag", start=(1, 2), end=(3, 4))
    ]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("pyautogui.doubleClick(1, 2, button='right')", "not_convertible"),
        ("pyautogui.dragTo(1, 2)", "not_convertible"),
        ("pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4, 1.0, None, 'right')", "not_convertible"),
        ("pyautogui.mouseDown(1, 2, 'right'); pyautogui.mouseUp()", "not_convertible"),
        ("pyautogui.mouseDown(1, 2); pyautogui.press('a'); pyautogui.mouseUp()", "not_convertible"),
        ("pyautogui.mouseDown(1, 2)", "not_convertible"),
        ("pyautogui.press('volumeup')", "not_convertible"),
        ("pyautogui.press('')", "not_convertible"),
        ("pyautogui.hotkey('left', 'ctrl')", "not_convertible"),  # which would be read as the left control key
        ("pyautogui.hotkey('a', 'a')", "not_convertible"),
        ("pyautogui.hotkey(*['a'] * 5)", "bad_source"),
        ("pyautogui.hotkey('a', word='b')", "bad_source"),
        ("pyautogui.scroll(5, direction='down')", "bad_source"),
        ("pyautogui.hotkey('a', x='b')", "not_convertible"),
        ("pyautogui.keyDown('A')", "not_convertible"),
        ("pyautogui.scroll(2.5)", "not_convertible"),
        ("pyautogui.click(5)", "bad_source"),
        ("pyautogui.click('5', '6')", "bad_source"),
        ("pyautogui.click(1, 2, button=['left'])", "bad_source"),
        ("pyautogui.press('a', 50);" * 100, "not_convertible"),
        ("pyautogui.click(1, 2, button='middle')", "not_convertible"),
        ("pyautogui.click(1, 2, clicks=3)", "not_convertible"),  # UI-TARS's prompts have no triple click
        ("pyautogui.tripleClick(1, 2)", "not_convertible"),
        ("pyautogui.click()", "not_convertible"),
        ("import os; os.system('ls')", "bad_source"),
        ("import subprocess", "bad_source"),
        ("pyautogui.write(open('x').read())", "bad_source"),
        ("for i in range(3): pyautogui.press('a')", "bad_source"),
        ("pyautogui.screenshot()", "bad_source"),
        ("pyautogui.click(*xs)", "bad_source"),
        ("pyautogui.scroll('a')", "bad_source"),
        ("pyautogui.press(3)", "bad_source"),
        ("pyautogui.press('a', presses=1000000000)", "not_convertible"),
        ("pyautogui.press('a', presses=1e999)", "bad_source"),
        ("pyautogui.click(1e999, 2)", "bad_source"),
        ("pyautogui.click(" + "(" * 5000 + ")" * 5000 + ")", "bad_source"),
        ("pyautogui.click(" + "-" * 5000 + "1, 2)", "bad_source"),
        ("x = 1", "bad_source"),
        ("pyautogui.write('", "bad_source"),
        ("\0", "bad_source"),
    ],
)
def test_other_source_is_refused(source: str, reason: str) -> None:
    with pytest.raises(ParseError) as caught:
        from_pyautogui(source)
    assert caught.value.reason == reason


_VALUES = st.one_of(
    st.integers(-9, 9), st.floats(), st.text(max_size=3), st.none(), st.lists(st.integers(), max_size=2)
)
_CALLS = st.builds(
    lambda name, values, named: f"{name}({', '.join([*map(repr, values), *(f'{k}={v!r}' for k, v in named.items())])})",
    st.sampled_from([*_HANDLERS, "pyautogui.other", "os.system"]),
    st.lists(_VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["x", "y", "clicks", "button", "presses", "keys", "key"]), _VALUES, max_size=2),
)


@examples(500)
@given(st.one_of(st.lists(_CALLS, max_size=4).map("; ".join), st.text()))
def test_any_source_is_read_or_refused_with_parse_error(source: str) -> None:
    try:
        actions = from_pyautogui(source)
    except ParseError as error:
        assert error.reason in ("bad_source", "not_convertible")  # noqa: PT017
    else:
        assert all(action.kind in GRAMMAR["desktop"] for action in actions)


def test_a_guarded_import_is_read_as_an_import() -> None:
    """Agent S3 begins typing so; what it does where the import fails is not what a trace has done."""
    guarded = (
        "try:\n    import pyperclip\nexcept ImportError:\n    import os\n    os.system('x')\n    import pyperclip\n"
    )
    assert from_pyautogui(guarded + "pyautogui.write('a')") == [Action("type", content="a")]
    for other in ("except ValueError:", "except:", "except ImportError:\n    pass\nelse:"):
        with pytest.raises(ParseError):
            from_pyautogui(guarded.replace("except ImportError:", other) + "pyautogui.write('a')")
    with pytest.raises(ParseError):
        from_pyautogui("try:\n    import os\nexcept ImportError:\n    pass\npyautogui.write('a')")
