"""Key names: every spelling is one known key, and what is not known is refused; nothing is dropped."""

from __future__ import annotations

import re
from importlib.metadata import files

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from osworld_gym import Action, ParseError
from osworld_gym.uitars import parse
from osworld_gym.uitars.keys import _SPELLINGS, _TWO_WORDS, NAMED_KEYS, is_key, key_name, split_keys
from osworld_gym.uitars.pyautogui import to_pyautogui

#: every single key that the parser accepts
KEYS = (*NAMED_KEYS, *sorted({chr(code).lower() for code in range(0x21, 0x7F)}))


def read(text: str) -> str:
    """The keys of a hotkey, or the reason why it is refused."""
    quote = '"' if "'" in text else "'"
    try:
        return parse(f"Action: hotkey(key={quote}{text.replace(chr(92), chr(92) * 2)}{quote})").actions[0].key or ""
    except ParseError as error:
        return error.reason


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("page down", "pagedown"),
        ("Page Up", "pageup"),
        ("back space", "backspace"),
        ("caps lock", "capslock"),
        ("print screen", "printscreen"),
        ("left arrow", "left"),
        ("arrow left", "left"),
        ("ctrl page down", "ctrl pagedown"),
        ("ctrl left", "ctrl left"),
        ("shift left arrow", "shift left"),
        ("left shift a", "shift a"),
        ("right ctrl c", "ctrlright c"),
        ("ctrl,c", "ctrl c"),
        ("ctrl, shift, t", "ctrl shift t"),
        ("ctrl , c", "ctrl c"),
        ("ctrl+shift,t", "ctrl shift t"),
        ("ctrl ,", "ctrl ,"),
        ("ctrl+,", "ctrl ,"),
        (",", ","),
        ("Control_L c", "ctrl c"),
        ("Shift_R", "shiftright"),
        ("kp_enter", "enter"),
        ("KP_Add", "+"),
        ("Prior", "pageup"),
        ("Next", "pagedown"),
        ("ISO_Level3_Shift", "altright"),
        ("alt-F4", "alt f4"),
        ("num5", "5"),
        ("ctrl foo", "unknown_key"),
        ("enter key", "unknown_key"),
        ("volumeup", "unknown_key"),
        ("f13", "unknown_key"),
        ("ü", "unknown_key"),
        ("\x00", "unknown_key"),
        (" ", "empty_key"),
    ],
)
def test_spellings(written: str, keys: str) -> None:
    assert read(written) == keys


def test_every_spelling_is_a_key_in_any_case_and_in_combinations() -> None:
    spellings = {other: name for name, others in _SPELLINGS.items() for other in others.split()}
    assert len(spellings) == sum(len(others.split()) for others in _SPELLINGS.values()), "a spelling of two keys"
    for other, name in spellings.items():
        assert is_key(name)
        assert not is_key(other)
        for written in (other, other.upper(), other.capitalize()):
            assert split_keys(f"ctrl {written}") == ("ctrl", name)
            assert split_keys(f"ctrl+{written}") == ("ctrl", name)
    for words in _TWO_WORDS:
        (name,) = split_keys(words)
        assert is_key(name)
        assert key_name(words.replace(" ", "_")) == name


@pytest.mark.parametrize("key", KEYS)
def test_canonical_names_stay(key: str) -> None:
    assert read(key) == key
    assert read(f"ctrl {key}") == f"ctrl {key}"
    assert to_pyautogui([Action("keydown", key=key)]).splitlines()[1:] == [f"pyautogui.keyDown({key!r})"]


@examples(300)
@given(st.lists(st.one_of(st.sampled_from([*KEYS, "+", ",", "-", "page", "arrow"]), st.text(max_size=3)), max_size=5))
def test_any_keys_are_known_or_refused(names: list[str]) -> None:
    for separator in (" ", "+", ", ", "-"):
        found = split_keys(separator.join(names))
        if all(map(is_key, found)):
            assert [key_name(name) for name in found] == list(found), "canonical names stay"
        elif len(" ".join(found)) < 100:
            assert read(" ".join(found)) == "unknown_key"


@pytest.mark.desktop
def test_every_key_is_in_pyautoguis_table_and_in_ours_for_x() -> None:
    """What the parser accepts, every provider presses; the checks of a provider press NAMED_KEYS for real."""
    from osworld_gym.guest.x11.keyboard import name_keysym

    assert [key for key in KEYS if name_keysym(key) is None] == []
    (path,) = (path for path in files("pyautogui") or () if path.name == "_pyautogui_x11.py")
    table = set(re.findall(r"^\s*'(\w+)':\s*_display", path.read_text(), re.MULTILINE))
    assert len(table) > 50
    assert [key for key in NAMED_KEYS if key not in table] == []
