"""Reads pyautogui source as actions (screen pixels): accepts known calls in its syntax tree; never runs it.

Used to convert traces of framework experts (Agent S2 writes such source) to responses of the policy, and for the
responses of OpenCUA. What the actions do not represent exactly is named: a trace with it is not faithful.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from osworld_gym.errors import ParseError
from osworld_gym.types import MAX_WHEEL_CLICKS, Action, Point
from osworld_gym.uitars.join_input import PASTE, Input, join_input
from osworld_gym.uitars.keys import is_key, key_name, split_keys
from osworld_gym.uitars.pyautogui_calls import RENAMED, Arguments, coordinate, read_calls

SCROLL_CLICKS = 5  #: wheel clicks of one scroll action, as in OSWorld's adapter
_WORDS = {"DONE": "finished", "FAIL": "call_user", "WAIT": "wait"}
MAX_SCROLLS = 10  #: scroll actions that are read of one call
_MAX_PRESSES = 50
_MAX_KEYS = 10  # most keys of one hotkey
_MAX_INPUTS = 2000  # most inputs of one source
_CHARACTERS = {"\n": "enter", "\r": "enter", "\t": "tab", " ": "space", "\b": "backspace"}
_BUTTONS = {"left": "left", "primary": "left", "right": "right", "secondary": "right", "middle": "middle"}
#: other spellings in keys.py that pyautogui has on X
_PYAUTOGUI = frozenset(
    {
        *("return", "escape", "del", "pgup", "pgdn", "winleft", "print", "prtsc", "prtscr", "prntscrn"),
        *("add", "subtract", "multiply", "divide", "decimal", *(f"num{digit}" for digit in range(10))),
    }
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a source.

    Args:
        actions: the actions, in screen pixels.
        inexact: a sentence for each statement that they do not represent exactly, with the statement.
    """

    actions: list[Action]
    inexact: tuple[str, ...] = ()


def scrolls(clicks: int) -> int:
    """The number of scroll actions of ``SCROLL_CLICKS`` that turn the wheel nearly this far: none only for 0 clicks."""
    return max(1, round(clicks / SCROLL_CLICKS)) if clicks else 0


def from_pyautogui(
    source: str, *, triple_click: bool = False, every: bool = False, exact: bool = False
) -> list[Action]:
    """The actions of :func:`read_pyautogui`.

    Args:
        source: Python source with calls of pyautogui.
        triple_click: whether a triple click is an action, which UI-TARS's prompts do not have.
        every: whether all actions are read, also those of :mod:`osworld_gym.qwen3vl`.
        exact: whether to refuse what the actions do not represent exactly.

    Raises:
        ParseError: as :func:`read_pyautogui`; ``not_exact`` with the sentences about it.
    """
    reading = read_pyautogui(source, triple_click=triple_click, every=every)
    if exact and reading.inexact:
        raise ParseError("not_exact", "; ".join(reading.inexact))
    return reading.actions


def read_pyautogui(source: str, *, triple_click: bool = False, every: bool = False) -> Reading:
    """The actions that the source performs; also reads OSWorld's special actions ``DONE``, ``FAIL`` and ``WAIT``.

    A pointer move is the start of the click, drag or scroll after it, or a ``hover``. Keys pressed and released around
    one press are a hotkey, otherwise ``keydown`` and ``keyup``. Characters pressed one after the other become ``type``,
    a copy to the clipboard and ctrl+v too, shift and comma the text ``<``; enter after typing becomes a newline. A
    sleep is a ``wait`` only if there is nothing else: pauses are no input. Points are exact to a pixel.

    Args:
        source: the source.
        triple_click: whether a triple click is an action.
        every: whether all actions are read: also triple and middle clicks, clicks and drags that begin where the
            pointer is, and scrolls by any number of wheel clicks. UI-TARS's and OpenCUA's texts do not have these.

    Raises:
        ParseError: ``bad_source`` if it is not Python or has anything but known calls with constants;
            ``not_convertible`` if the calls are known but the action space has no equivalent (a drag with the right
            button, a key that desktops here do not have, what is not read without ``every`` or ``triple_click``).
    """
    word = source.strip()
    if word in _WORDS:
        return Reading([Action(_WORDS[word])])
    player = _Player(source, triple_click or every, every)
    for call in read_calls(source):
        handler = _HANDLERS.get(call.name) or (_MORE_HANDLERS.get(call.name) if every else None)
        if handler is None:
            raise ParseError("bad_source", source)
        player.statement = call.source
        try:
            handler(player, call.arguments)
        except (TypeError, ValueError, OverflowError) as error:  # an argument of the wrong type, count or size
            raise ParseError("bad_source", source) from error
    return player.end()


@dataclass
class _Player:
    """State after the calls so far: pointer, held button and keys, clipboard, and the input read."""

    source: str
    triple_click: bool
    every: bool
    statement: str = ""
    inputs: list[Input] = field(default_factory=list)
    inexact: list[str] = field(default_factory=list)
    pointer: Point | None = None
    moved: bool = False  # the pointer has moved since the last action
    drag_path: list[Point] | None = None  # of the pointer while the button is held, from its press
    held: list[str] = field(default_factory=list)
    clipboard: str | None = None
    replaced: bool = False  # whether a program may have replaced what was copied here
    unpasted: str = ""  # the statement of a copy that was not pasted
    pastes: int = 0
    slept: bool = False

    def refuse(self) -> ParseError:
        return ParseError("not_convertible", self.source)

    def note(self, what: str) -> None:
        self.inexact.append(f"{self.statement[:80]}: {what}")

    def end(self) -> Reading:
        self.flush()
        if len(self.inputs) > _MAX_INPUTS:
            raise self.refuse()
        if self.unpasted:
            self.inexact.append(f"{self.unpasted}: the clipboard's content is not pasted here")
        actions, pasted = join_input(self.inputs)
        if pasted < self.pastes:
            self.inexact.append("a paste between held keys is read as keys")
        if not actions and self.slept:
            actions = [Action("wait")]
        return Reading(actions, tuple(self.inexact))

    # the pointer

    def move(self, point: Point | None) -> None:
        """Moves the pointer; a move before it that nothing has used is a ``hover``."""
        if point is None or point == self.pointer:
            return
        if self.drag_path is not None:
            self.drag_path.append(point)
        else:
            self.flush()
            self.moved = True
        self.pointer = point

    def flush(self) -> None:
        """A move that nothing has used yet becomes a ``hover``. Refuses keys and clicks while a button is held."""
        if self.drag_path is not None:
            raise self.refuse()
        if self.moved:
            self.inputs.append(Input(Action("hover", start=self.pointer)))
        self.moved = False

    def at(self) -> Point | None:
        """Where the pointer is, for an action that moves it there; None: where it was before the source."""
        if self.drag_path is not None or (self.pointer is None and not self.every):
            raise self.refuse()
        self.moved = False
        return self.pointer

    def offset(self, a: Arguments) -> Point:
        if self.pointer is None:
            raise self.refuse()
        dx, dy = (coordinate(0.0 if d is None else d) for d in (a.get(0, "xOffset"), a.get(1, "yOffset")))
        return coordinate(self.pointer[0] + dx), coordinate(self.pointer[1] + dy)

    def click(self, a: Arguments, *, button: Any = None, clicks: Any = None) -> None:
        self.move(a.point())
        clicks = a.get(2, "clicks", 1) if clicks is None else clicks
        button = a.get(4, "button", "left") if button is None else button
        if clicks == 0:
            return
        kinds = {("left", 1): "click", ("left", 2): "left_double", ("right", 1): "right_single"}
        if self.triple_click:
            kinds["left", 3] = "left_triple"
        if self.every:
            kinds["middle", 1] = "middle_single"
        kind = kinds.get((_BUTTONS.get(button, ""), clicks))
        if kind is None:
            raise self.refuse()
        self.inputs.append(Input(Action(kind, start=self.at())))

    def drag_to(self, a: Arguments, *, relative: bool = False) -> None:
        end = self.offset(a) if relative else a.point()
        if end is None or _BUTTONS.get(a.get(4, "button", "left")) != "left":
            raise self.refuse()
        self.drag(self.at(), end)

    def drag(self, start: Point | None, end: Point) -> None:
        """A drag; without a move it is a click."""
        self.inputs.append(
            Input(Action("click", start=start) if end == start else Action("drag", start=start, end=end))
        )
        self.pointer = end

    def mouse_down(self, a: Arguments) -> None:
        self.move(a.point())
        if _BUTTONS.get(a.get(2, "button", "left")) != "left":
            raise self.refuse()
        start = self.at()
        if start is None:
            raise self.refuse()
        self.drag_path = [start]

    def mouse_up(self, a: Arguments) -> None:
        """Ends a drag or click; without a preceding press it does nothing but its move, as after ``dragTo``."""
        self.move(a.point())
        path, self.drag_path = self.drag_path, None
        if path is None:
            return
        if _BUTTONS.get(a.get(2, "button", "left")) != "left":
            raise self.refuse()
        if len(path) > 2:
            self.note(f"a drag through {len(path)} points is read as one from the first to the last")
        self.drag(path[0], path[-1])

    def scroll(self, a: Arguments, *, sideways: bool = False) -> None:
        clicks = a.get(0, "clicks")
        self.move(a.point(1))
        if self.drag_path is not None or clicks != int(clicks):
            raise self.refuse()
        if clicks == 0:
            return
        direction = ("right" if clicks > 0 else "left") if sideways else ("up" if clicks > 0 else "down")
        self.moved = False
        times = min(MAX_SCROLLS, scrolls(abs(clicks)))
        action = Action("scroll", start=self.pointer, direction=direction)
        if times * SCROLL_CLICKS != abs(clicks):
            if self.every and abs(clicks) <= MAX_WHEEL_CLICKS:
                self.inputs.append(Input(replace(action, clicks=int(abs(clicks)))))
                return
            self.note(f"{abs(clicks)} wheel clicks are read as {times * SCROLL_CLICKS}")
        self.inputs += [Input(action)] * times

    # the keyboard

    def key(self, name: Any) -> str:
        """A key of pyautogui by our name."""
        if not isinstance(name, str):
            raise TypeError(f"expected a key's name, got {name!r}")
        key = _CHARACTERS.get(name) or key_name(name)
        if not is_key(key):
            raise self.refuse()
        if key != name.lower() and name not in _CHARACTERS and name.lower() not in _PYAUTOGUI:
            self.note(f"pyautogui has no key {name!r}; read as {key}")
        return key

    def chord(self, names: list[Any]) -> None:
        """Keys that are pressed in order and released in reverse; an upper-case letter is shift and the letter."""
        keys: list[str] = []
        for name in names[: _MAX_KEYS + 1]:
            key = self.key(name)
            keys += ["shift", key] if len(name) == 1 and name.isupper() and "shift" not in keys else [key]
        if not 0 < len(keys) <= _MAX_KEYS or len(set(keys)) < len(keys) or split_keys(" ".join(keys)) != tuple(keys):
            raise self.refuse()
        self.flush()
        self.inputs.append(Input(Action("hotkey", key=" ".join(keys)), self.clipboard))
        self.follow_clipboard([*self.held, *keys])

    def follow_clipboard(self, pressed: list[str]) -> None:
        """Follows the clipboard through the keys that change or use it."""
        if " ".join(pressed) in PASTE and self.clipboard is not None:
            self.pastes, self.unpasted = self.pastes + 1, ""
            if set("\n\r\t") & set(self.clipboard):
                self.note("pasted line ends and tabs are read as keys")
        elif " ".join(pressed) in PASTE and self.replaced:
            self.note("what is pasted is not known")
        elif "ctrl" in pressed and {"c", "x", "insert"} & set(pressed) and self.clipboard is not None:
            self.clipboard, self.replaced = None, True

    def press(self, a: Arguments) -> None:
        presses = a.get(1, "presses", 1)
        names = a.get(0, "keys")
        if names is None:
            names = self.renamed(a, "key", "button")
        names = [names] if isinstance(names, str) else list(names)
        if not isinstance(presses, int):
            raise TypeError(f"presses: expected a number, got {presses!r}")
        if not 0 <= presses * len(names) <= _MAX_PRESSES:
            raise self.refuse()
        for name in names * presses:
            self.chord([name])
            if not self.held and len(name) == 1 and " " <= name <= "~":
                self.inputs[-1] = replace(self.inputs[-1], character=name)

    def hotkey(self, a: Arguments) -> None:
        first = a.positional[0] if a.positional else None
        names = first if isinstance(first, list | tuple) else a.positional
        for name in a.named:
            if name not in ("interval", "logScreenshot", "_pause"):  # keys=[...], key1=..., key2=...
                value = self.renamed(a, name)
                names = [*names, *([value] if isinstance(value, str) else value)]
        self.chord(list(names))

    def renamed(self, a: Arguments, *names: str) -> Any:
        """The value of an argument that pyautogui does not have and OpenCUA's agents correct."""
        name = next((name for name in names if name in a.named and name in RENAMED), None)
        if name is None:
            raise self.refuse()
        self.note(f"pyautogui has no argument {name}")
        return a.named[name]

    def key_down(self, a: Arguments) -> None:
        key = self.one_key(a)
        self.inputs.append(Input(Action("keydown", key=key)))
        self.held.append(key)

    def key_up(self, a: Arguments) -> None:
        key = self.one_key(a)
        self.inputs.append(Input(Action("keyup", key=key)))
        self.held = [other for other in self.held if other != key]

    def one_key(self, a: Arguments) -> str:
        self.flush()
        name = a.get(0, "key")
        key = self.key(name)
        if len(name) == 1 and name.isupper():  # pyautogui holds the letter, but not shift
            raise self.refuse()
        return key

    def write(self, a: Arguments) -> None:
        text = a.get(0, "message")
        if text is None:
            text = self.renamed(a, "text", "content")
        if isinstance(text, list):  # of key names
            return self.press(Arguments([text], {}))
        if not isinstance(text, str):
            raise TypeError(f"message: expected text, got {text!r}")
        text = _whole(text)
        if not all(" " <= character <= "~" or character in "\n\r\t" for character in text):
            self.note("pyautogui types only ASCII; read as the whole text")
        self.flush()
        if text:
            self.inputs.append(Input(Action("type", content=text)))
        return None

    def copy(self, a: Arguments) -> None:
        text = a.get(0, "text")
        if not isinstance(text, str):
            raise TypeError(f"text: expected text, got {text!r}")
        self.clipboard, self.replaced, self.unpasted = _whole(text), False, self.statement[:80]

    def sleep(self, _: Arguments) -> None:
        self.slept = True


def _whole(text: str) -> str:
    r"""The text without halves of characters, such as ``\ud83d``, which no tokenizer and no file takes."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_HANDLERS: dict[str, Callable[[_Player, Arguments], None]] = {
    "pyautogui.moveTo": lambda p, a: p.move(a.point()),
    "pyautogui.move": lambda p, a: p.move(p.offset(a)),
    "pyautogui.moveRel": lambda p, a: p.move(p.offset(a)),
    "pyautogui.click": _Player.click,
    "pyautogui.leftClick": lambda p, a: p.click(a, button="left", clicks=1),
    "pyautogui.doubleClick": lambda p, a: p.click(a, button=a.get(3, "button", "left"), clicks=2),
    "pyautogui.tripleClick": lambda p, a: p.click(a, button=a.get(3, "button", "left"), clicks=3),
    "pyautogui.rightClick": lambda p, a: p.click(a, button="right", clicks=1),
    "pyautogui.dragTo": _Player.drag_to,
    "pyautogui.drag": lambda p, a: p.drag_to(a, relative=True),
    "pyautogui.dragRel": lambda p, a: p.drag_to(a, relative=True),
    "pyautogui.mouseDown": _Player.mouse_down,
    "pyautogui.mouseUp": _Player.mouse_up,
    "pyautogui.write": _Player.write,
    "pyautogui.typewrite": _Player.write,
    "pyautogui.press": _Player.press,
    "pyautogui.hotkey": _Player.hotkey,
    "pyautogui.keyDown": _Player.key_down,
    "pyautogui.keyUp": _Player.key_up,
    "pyautogui.scroll": _Player.scroll,
    "pyautogui.vscroll": _Player.scroll,
    "pyautogui.hscroll": lambda p, a: p.scroll(a, sideways=True),
    "pyautogui.sleep": _Player.sleep,
    "time.sleep": _Player.sleep,
    "pyperclip.copy": _Player.copy,
}
_MORE_HANDLERS: dict[str, Callable[[_Player, Arguments], None]] = {
    "pyautogui.middleClick": lambda p, a: p.click(a, button="middle", clicks=1),
}
