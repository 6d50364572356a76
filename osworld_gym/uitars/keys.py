"""Canonical key names: spellings in responses → pyautogui's names."""

from __future__ import annotations

import re

#: other spelling → pyautogui's name
_SYNONYMS = {
    "arrowleft": "left",
    "arrowright": "right",
    "arrowup": "up",
    "arrowdown": "down",
    "leftarrow": "left",
    "rightarrow": "right",
    "uparrow": "up",
    "downarrow": "down",
    "control": "ctrl",
    "ctl": "ctrl",
    "return": "enter",
    "escape": "esc",
    "del": "delete",
    "ins": "insert",
    "bksp": "backspace",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "pgdown": "pagedown",
    "spacebar": "space",
    "option": "alt",
    "opt": "alt",
    "menu": "apps",
    "plus": "+",
    "minus": "-",
    "equal": "=",
    "equals": "=",
    "comma": ",",
    "period": ".",
    "dot": ".",
    "slash": "/",
    "backslash": "\\",
    "semicolon": ";",
    "quote": "'",
    "print": "printscreen",
    "prtsc": "printscreen",
    "prntscrn": "printscreen",
}
#: names of the logo key (Windows, Command, Super)
_SYNONYMS |= dict.fromkeys(("cmd", "command", "meta", "super", "windows", "winleft", "superl"), "win")

MODIFIERS = frozenset({"ctrl", "alt", "shift", "win", "ctrlleft", "ctrlright", "altleft", "altright", "shiftleft"})

#: the keys that have a name, in pyautogui's spelling; every desktop performs them or lists them as unused
NAMED_KEYS = (
    "enter", "tab", "space", "esc", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right", "apps", "win", "winright", "ctrl", "ctrlleft", "ctrlright", "alt", "altleft",
    "altright", "shift", "shiftleft", "shiftright", "capslock", "numlock", "scrolllock", "pause", "printscreen",
    *(f"f{number}" for number in range(1, 13)),
)  # fmt: skip


def key_name(name: str) -> str:
    """One key's canonical name: lower case, pyautogui's spelling. An unknown name is lower-cased."""
    lowered = name.lower()
    if len(lowered) > 1:
        lowered = re.sub(r"(?<=\w)[_\-](?=\w)", "", lowered)
    return _SYNONYMS.get(lowered, lowered)


def split_keys(text: str) -> tuple[str, ...]:
    """``ctrl c``, ``Ctrl+C``, ``ctrl-c`` and ``ctrl + c`` → ``("ctrl", "c")``; ``ctrl +`` → ``("ctrl", "+")``.

    Each name is canonical (:func:`key_name`). An empty text returns an empty tuple.
    """
    words = text.split()
    names: list[str] = []
    for i, word in enumerate(words):
        parts = _split_word(word)
        if i < len(words) - 1 and (names or parts != ["+"]) and parts[-1:] == ["+"]:
            parts = parts[:-1]  # a plus followed by a key is a separator: "ctrl + c", "ctrl+ c"
        names += parts
    return tuple(key_name(name) for name in names)


def _split_word(word: str) -> list[str]:
    """Splits one word into key names; a plus at its end is the plus key."""
    if "+" in word:
        names = [part for part in word.split("+") if part]
        return [*names, "+"] if word.endswith("+") else names
    names = []
    head, dash, tail = word.partition("-")
    while dash and tail and key_name(head) in MODIFIERS:  # ctrl-shift-t
        names.append(head)
        word = tail
        head, dash, tail = word.partition("-")
    return [*names, word]
