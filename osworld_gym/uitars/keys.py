"""Canonical key names: spellings in responses → pyautogui's names. The one table that parsers and providers share."""

from __future__ import annotations

import re

MODIFIERS = frozenset({"ctrl", "alt", "shift", "win", "ctrlleft", "ctrlright", "altleft", "altright", "shiftleft"})

#: the keys that have a name, in pyautogui's spelling; every desktop performs them or lists them as unused
NAMED_KEYS = (
    "enter", "tab", "space", "esc", "backspace", "delete", "insert", "home", "end", "pageup", "pagedown",
    "up", "down", "left", "right", "apps", "win", "winright", "ctrl", "ctrlleft", "ctrlright", "alt", "altleft",
    "altright", "shift", "shiftleft", "shiftright", "capslock", "numlock", "scrolllock", "pause", "printscreen",
    *(f"f{number}" for number in range(1, 13)),
)  # fmt: skip

#: canonical name → other spellings, in lower case and without ``_``, ``-`` and spaces inside; X's keysym names too
_SPELLINGS = {
    "enter": "return linefeed kpenter numenter",
    "tab": "kptab",
    "space": "spacebar kpspace",
    "esc": "escape",
    "backspace": "bksp bkspace bs",
    "delete": "del kpdelete",
    "insert": "ins kpinsert",
    "home": "kphome",
    "end": "kpend",
    "pageup": "pgup prior kpprior kppageup",
    "pagedown": "pgdn pgdown pagedn next kpnext kppagedown",
    "up": "arrowup uparrow kpup",
    "down": "arrowdown downarrow kpdown",
    "left": "arrowleft leftarrow kpleft",
    "right": "arrowright rightarrow kpright",
    "apps": "menu contextmenu",
    "win": "cmd command meta super windows winleft superl metal lwin leftwin leftsuper leftmeta leftcmd",
    "winright": "superr metar rwin rightwin rightsuper rightmeta rightcmd",
    "ctrl": "control ctl controll ctrll lctrl leftctrl leftcontrol",
    "ctrlright": "controlr ctrlr rctrl rightctrl rightcontrol",
    "alt": "option opt altl lalt leftalt optionleft",
    "altright": "altr altgr ralt rightalt isolevel3shift optionright",
    "shift": "shiftl lshift leftshift",
    "shiftright": "shiftr rshift rightshift",
    "numlock": "numlk",
    "capslock": "caps",
    "scrolllock": "scrlk",
    "pause": "break pausebreak",
    "printscreen": "print prtsc prtscr prntscrn printscrn snapshot",
    "+": "plus add kpadd",
    "-": "minus dash hyphen subtract kpsubtract",
    "*": "asterisk multiply kpmultiply",
    "/": "slash divide kpdivide",
    ".": "period dot decimal kpdecimal",
    ",": "comma kpseparator",
    "=": "equal equals kpequal",
    "\\": "backslash",
    ";": "semicolon",
    ":": "colon",
    "'": "quote apostrophe",
    '"': "quotedbl doublequote",
    "`": "grave backquote backtick",
    "~": "asciitilde tilde",
    "[": "bracketleft leftbracket",
    "]": "bracketright rightbracket",
    "{": "braceleft leftbrace",
    "}": "braceright rightbrace",
    "(": "parenleft",
    ")": "parenright",
    "<": "less",
    ">": "greater",
    "?": "question",
    "|": "bar pipe",
    "_": "underscore",
    "!": "exclam",
    "@": "at",
    "#": "numbersign hash",
    "$": "dollar",
    "%": "percent",
    "^": "asciicircum caret",
    "&": "ampersand",
    **{str(digit): f"num{digit} kp{digit} numpad{digit}" for digit in range(10)},
}
_CANONICAL = {other: name for name, others in _SPELLINGS.items() for other in others.split()}

#: names of one key that are written as two words; "left shift" is one key, "shift left" are two
_TWO_WORDS = frozenset(
    {
        *("page up", "page down", "page dn", "pg up", "pg dn", "pg down", "back space", "space bar", "context menu"),
        *("caps lock", "num lock", "scroll lock", "print screen", "prt sc", "prt scr", "alt gr"),
        *(f"{way} arrow" for way in ("up", "down", "left", "right")),
        *(f"arrow {way}" for way in ("up", "down", "left", "right")),
        *(f"{side} {key}" for side in ("left", "right") for key in ("ctrl", "control", "shift", "alt")),
        *(f"{side} {key}" for side in ("left", "right") for key in ("win", "super", "meta", "cmd")),
    }
)
_JOINED = re.compile(r"(?<=\w)[_\-](?=\w)")  # Page_Down, page-down, Control_L


def key_name(name: str) -> str:
    """One key's canonical name: lower case, pyautogui's spelling. An unknown name is lower-cased."""
    lowered = name.lower()
    if len(lowered) > 1:
        lowered = _JOINED.sub("", lowered)
    return _CANONICAL.get(lowered, lowered)


def is_key(name: str) -> bool:
    """Whether a canonical name is a key that every desktop has: one of ``NAMED_KEYS``, or a character of ASCII."""
    return name in NAMED_KEYS or (len(name) == 1 and "!" <= name <= "~")


def split_keys(text: str) -> tuple[str, ...]:
    """``ctrl c``, ``Ctrl+C``, ``ctrl-c``, ``ctrl, c``, ``ctrl + c``: ``("ctrl", "c")``; ``ctrl +``: ``("ctrl", "+")``.

    Each name is canonical (:func:`key_name`), also if it is written as two words (``page down``); it may be unknown
    (:func:`is_key`). An empty text returns an empty tuple.
    """
    words = text.split()
    parts: list[str] = []
    for place, word in enumerate(words):
        split = _split_word(word)
        followed = place < len(words) - 1
        if followed and (parts or len(split) > 1) and split[-1:] in (["+"], [","]):
            split = split[:-1]  # a separator, since a key follows: "ctrl + c", "ctrl+ c", "ctrl, c"
        parts += split
    names: list[str] = []
    while parts:
        count = 2 if " ".join(parts[:2]).lower() in _TWO_WORDS else 1
        names.append(key_name("".join(parts[:count])))
        del parts[:count]
    return tuple(names)


def _split_word(word: str) -> list[str]:
    """Splits one word into key names; a plus or comma at its end is that key."""
    for separator in "+,":
        if separator in word and word != separator:
            names = [part for piece in word.split(separator) if piece for part in _split_word(piece)]
            return [*names, separator] if word.endswith(separator) else names
    names = []
    head, dash, tail = word.partition("-")
    while dash and tail and key_name(head) in MODIFIERS:  # ctrl-shift-t
        names.append(head)
        word = tail
        head, dash, tail = word.partition("-")
    return [*names, word]
