"""The keyboard: maps characters and key names to X key codes, with spare codes for characters without a key."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from Xlib import XK, X
from Xlib.display import Display

_CONTROL = {"\n": "Return", "\r": "Return", "\t": "Tab", "\b": "BackSpace", "\x1b": "Escape"}

#: pyautogui's key names (and usual spellings) → X keysym names
_NAMES = {
    "ctrl": "Control_L",
    "control": "Control_L",
    "ctrlleft": "Control_L",
    "ctrlright": "Control_R",
    "shift": "Shift_L",
    "shiftleft": "Shift_L",
    "shiftright": "Shift_R",
    "alt": "Alt_L",
    "altleft": "Alt_L",
    "altright": "Alt_R",
    "win": "Super_L",
    "winleft": "Super_L",
    "winright": "Super_R",
    "super": "Super_L",
    "meta": "Super_L",
    "cmd": "Super_L",
    "command": "Super_L",
    "enter": "Return",
    "return": "Return",
    "tab": "Tab",
    "space": "space",
    "esc": "Escape",
    "escape": "Escape",
    "backspace": "BackSpace",
    "del": "Delete",
    "delete": "Delete",
    "ins": "Insert",
    "insert": "Insert",
    "home": "Home",
    "end": "End",
    "pageup": "Prior",
    "pgup": "Prior",
    "pagedown": "Next",
    "pgdn": "Next",
    "up": "Up",
    "down": "Down",
    "left": "Left",
    "right": "Right",
    "apps": "Menu",
    "menu": "Menu",
    "capslock": "Caps_Lock",
    "numlock": "Num_Lock",
    "scrolllock": "Scroll_Lock",
    "pause": "Pause",
    "printscreen": "Print",
    "print": "Print",
} | {f"f{i}": f"F{i}" for i in range(1, 25)}


def char_keysym(char: str) -> int | None:
    """The keysym that enters ``char``: Latin-1 directly, other characters by Unicode; None if it cannot be typed."""
    if char in _CONTROL:
        return int(XK.string_to_keysym(_CONTROL[char]))
    point = ord(char)
    if 0x20 <= point <= 0x7E or 0xA0 <= point <= 0xFF:
        return point
    if point < 0x100 or 0xD800 <= point <= 0xDFFF:
        return None
    return 0x01000000 | point


def name_keysym(name: str) -> int | None:
    """The keysym of a key name or of a single character; None for an unknown name."""
    lowered = name.lower()
    if lowered in _NAMES:
        return XK.string_to_keysym(_NAMES[lowered]) or None
    return char_keysym(lowered) if len(lowered) == 1 else None


class Keyboard:
    """The X server's map from key codes to keysyms. Keysyms without a key are assigned a spare code, oldest first."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._width = 0
        #: keysym → (key code, whether shift is needed)
        self._codes: dict[int, tuple[int, bool]] = {}
        self._spare: OrderedDict[int, int | None] = OrderedDict()
        self.shift = 0
        self.refresh()

    def refresh(self) -> None:
        """Reads the map again if a program (``setxkbmap``) has changed it, which also takes the spare codes back."""
        changed = not self._codes
        while self._display.pending_events():
            changed |= self._display.next_event().type == X.MappingNotify
        if not changed:
            return
        info = self._display.display.info
        first, last = info.min_keycode, info.max_keycode
        rows = self._display.get_keyboard_mapping(first, last - first + 1)
        keys = {code: tuple(row) for code, row in enumerate(rows, start=first)}
        self._width = max(map(len, keys.values()))
        ours = {code: keysym for code, keysym in self._spare.items() if keysym is not None and keys[code][0] == keysym}
        self._spare = OrderedDict.fromkeys(code for code, row in keys.items() if not any(row))
        self._spare |= ours
        self._codes = {}
        for code, row in keys.items():
            for level in (1, 0):
                if level < len(row) and row[level] and row[level] not in self._codes:
                    self._codes[row[level]] = (code, level == 1)
        # a key that produces the character without shift takes precedence
        for code, row in keys.items():
            if row and row[0] and self._codes.get(row[0], (0, True))[1]:
                self._codes[row[0]] = (code, False)
        self.shift = self._codes.get(XK.string_to_keysym("Shift_L"), (self.shift, False))[0]

    @property
    def spare(self) -> int:
        """How many keysyms without a key can be typed in one go."""
        return len(self._spare)

    def lookup(self, keysym: int) -> tuple[int, bool] | None:
        """(key code, whether shift is needed) of a keysym; None if it has no key code."""
        return self._codes.get(keysym)

    def takes_away(self, keysyms: set[int]) -> bool:
        """Whether :meth:`provide` would give some keysym the key code of another one."""
        new = sum(keysym not in self._codes for keysym in keysyms)
        return new > sum(keysym is None for keysym in self._spare.values())

    def provide(self, keysyms: set[int]) -> None:
        """Assigns a key code to each keysym; at most :attr:`spare` of them may be new."""
        for keysym in keysyms:
            code = self._codes.get(keysym, (0, False))[0]
            if code in self._spare:
                self._spare.move_to_end(code)
        missing = sorted(keysym for keysym in keysyms if keysym not in self._codes)
        for keysym in missing:
            code, old = self._spare.popitem(last=False)
            if old is not None:
                del self._codes[old]
            self._spare[code] = keysym
            self._codes[keysym] = (code, False)
            self._display.change_keyboard_mapping(code, [[keysym] * self._width])
        self._display.sync()

    def chunks(self, text: str) -> Iterator[tuple[list[int], set[int]]]:
        """``text`` in pieces of (keysyms to type, those that need a spare code), each within the spare codes."""
        keysyms: list[int] = []
        extra: set[int] = set()
        for char in text:
            keysym = char_keysym(char)
            if keysym is None:
                continue
            codes = self._codes.get(keysym)
            own = codes is not None and codes[0] not in self._spare
            if not own and keysym not in extra and len(extra) == self.spare:
                yield keysyms, extra
                keysyms, extra = [], set()
            keysyms.append(keysym)
            if not own:
                extra.add(keysym)
        yield keysyms, extra
