"""Parser of responses: text → thought and actions, in pixels of the image that the model saw.

Model text is never evaluated. An example of a response::

    Thought: I will mute the sound.
    Action: click(start_box='<|box_start|>(72,40)<|box_end|>')

    hotkey(key='ctrl s')

For any other text, the only exception is :class:`osworld_gym.ParseError`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

from osworld_gym.errors import ParseError
from osworld_gym.types import Action, Point
from osworld_gym.uitars.actions import DIRECTIONS, GRAMMAR, ActionSpec, Argument, Platform
from osworld_gym.uitars.keys import is_key, split_keys

MAX_CHARS = 100_000  #: longer responses are parse errors
MAX_KEY_CHARS = 200  #: most characters of the keys of one ``hotkey``
MAX_COORDINATE = 100_000.0  #: pixels; no screen is larger

_LINE_MARKER = re.compile(r"^[ \t]*Action[ \t]*[:：]", re.MULTILINE)
_ANY_MARKER = re.compile(r"Action[:：]")
_THOUGHT = re.compile(r"\s*Thought[ \t]*[:：]")
_NEXT_THOUGHT = re.compile(r"Thought[ \t]*[:：]")
_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*+([A-Za-z_]\w*)\s*\(\s*", re.ASCII)  # "computer.click(" is "click("
_KEYWORD = re.compile(r"([A-Za-z_]\w*)\s*=\s*(?=['\"])", re.ASCII)
_LINE_END = r"[ \t]*+(?:;[ \t]*+)?(?:\#[^\n]*+)?(?=\n|\Z)"
_CLOSE = re.compile(rf"\s*(?:\){_LINE_END}|\Z)")  # a parenthesis that is missing at the end of the text is added
_CLOSE_AFTER = re.compile(rf"\s*(?:,\s*)?(?:\){_LINE_END}|\Z)")  # after an argument, which may have a comma
_BARE = re.compile(rf"([A-Za-z_]\w*){_LINE_END}", re.ASCII)
_PAREN = re.compile(r"\s*\)")
_COMMA = re.compile(r"\s*,\s*")
_END_TOKENS = ("<|im_end|>", "<|endoftext|>", "[EOS]")  # which an engine may leave at the end of the text
# ignored between actions: white space, code fences, and ``Action:``
_BETWEEN = re.compile(r"(?:\s+|```\w*|Action[ \t]*[:：])*+", re.ASCII)


# what follows the end of an argument
_AFTER = rf"\s*(?:(?:,\s*)?(?:\){_LINE_END}|\Z)|,\s*[A-Za-z_]\w*\s*=\s*['\"])"


def _quoted(quote: str) -> re.Pattern[str]:
    """Regex of a string in ``quote``; an unescaped quote inside is text unless what follows can end the argument."""
    return re.compile(rf"{quote}((?:[^{quote}\\]++|\\.|{quote}(?!{_AFTER}))*+){quote}", re.DOTALL | re.ASCII)


_QUOTED = {"'": _quoted("'"), '"': _quoted('"')}
# boxes, keys and directions contain no quotes, but for the key of that name: a quote after a backslash may be it
_PLAIN = re.compile(rf"(['\"])([^'\"\n]*)\1(?:(?<!\\.)|(?={_AFTER}))", re.ASCII)
_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:u([dD][89abAB]{_HEX}{{2}})\\u([dD][c-fC-F]{_HEX}{{2}})|u({_HEX}{{4}})|U({_HEX}{{8}})|x({_HEX}{{2}})|(.))",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\", "\n": ""}

_NUM = r"([+-]?[0-9]{1,9}(?:\.[0-9]{0,12})?)"
_SEP = r"\s*(?:,\s*|\s)"
_TWO, _FOUR = rf"\s*{_NUM}{_SEP}{_NUM}\s*", rf"\s*{_NUM}{_SEP}{_NUM}{_SEP}{_NUM}{_SEP}{_NUM}\s*"
_BOXES = tuple(
    re.compile(pattern, re.ASCII)
    for pattern in (
        rf"\[{_TWO}\]|<point>{_TWO}</point>|\(?{_TWO}\)?",  # a parenthesis may be missing
        rf"\[{_FOUR}\]|<bbox>{_FOUR}</bbox>|\({_TWO}\)\s*,?\s*\({_TWO}\)|\(?{_FOUR}\)?",
    )
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed response: ``thought`` ("" if there is none) and at least one action, in order."""

    thought: str
    actions: tuple[Action, ...]


def parse(text: str, *, platform: Platform = "desktop") -> Parsed:
    r"""Parses one response. Coordinates are pixels of the model's image; a box ``[x1,y1,x2,y2]`` is read as its centre.

    Escapes in text are Python's ``\' \" \n \t \r \\`` and those of a character's code (``\u4f60``); any other backslash
    is kept. Key names are returned in pyautogui's spelling, separated by spaces. As in UI-TARS's own parsers, arguments
    that an action does not have are ignored, of an argument given twice the last counts, and of several pairs of
    thought and action the last is performed.

    Raises:
        ParseError: ``text`` is anything else, of any type. ``reason`` is one of: not_text, too_long,
            no_action, bad_call, unknown_action, missing_argument, bad_string, bad_box, bad_coordinate, bad_direction,
            empty_key, unknown_key, too_many_keys, trailing_text.
    """
    if not isinstance(text, str):
        raise ParseError("not_text", repr(text))
    if len(text) > MAX_CHARS:
        raise ParseError("too_long", text)
    body = text[: _end(text)]
    start, position = _find_actions(body)
    actions: list[Action] = []
    position = _skip(body, position)
    while position < len(body):
        if actions and _NEXT_THOUGHT.match(body, position):
            actions, position = [], _next_pair(body, position)
        else:
            action, position = _read_call(body, position, platform, first=not actions)
            actions.append(action)
        position = _skip(body, position)
    if not actions:
        raise ParseError("no_action", text)
    return Parsed(_clean_thought(body[:start]), tuple(actions))


def thought_of(text: str) -> str:
    """The thought of any response, also an unparsable one: the text before ``Action:``. Never raises on a string."""
    marker = _LINE_MARKER.search(text) or _last(_ANY_MARKER, text)
    return _clean_thought(text[: marker.start()] if marker else text)


def _clean_thought(text: str) -> str:
    match = _THOUGHT.match(text)
    return (text[match.end() :] if match else text).strip()


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(pattern.finditer(text), key=re.Match.start, default=None)


def _find_actions(text: str) -> tuple[int, int]:
    """Where the thought ends and the actions start: at the first line with ``Action:``, else at its last occurrence."""
    marker = _LINE_MARKER.search(text) or _last(_ANY_MARKER, text)
    if marker is None:
        raise ParseError("no_action", text)
    return marker.start(), marker.end()


def _end(text: str) -> int:
    """Where the response ends, without end tokens and the spaces around them."""
    end = len(text)
    token: str | None = ""
    while token is not None:
        end -= len(token)
        while end and text[end - 1].isspace():
            end -= 1
        token = next((token for token in _END_TOKENS if text.endswith(token, 0, end)), None)
    return end


def _next_pair(text: str, position: int) -> int:
    """The position after the next ``Action:`` at the start of a line."""
    marker = _LINE_MARKER.search(text, position)
    if marker is None:
        raise ParseError("trailing_text", text)
    return marker.end()


def _skip(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return match.end() if match else position


def _read_call(text: str, position: int, platform: Platform, *, first: bool) -> tuple[Action, int]:
    """Reads one ``name(argument='value', ...)`` at ``position``; returns the action and the position after it."""
    head = _NAME.match(text, position)
    if head is None:
        return _read_bare(text, position, platform, first=first)
    spec = GRAMMAR[platform].get(head[1])
    if spec is None:
        raise ParseError("unknown_action" if first else "trailing_text", text)
    values: dict[str, Any] = {}
    position, after = head.end(), False
    while (close := (_CLOSE_AFTER if after else _CLOSE).match(text, position)) is None:
        position = _next_argument(text, position, first=not after)
        argument, raw, position = _read_argument(text, position, spec)
        if argument is not None:
            values[argument.field] = _read_value(argument, raw, text)
        after = True
    _check_complete(spec, values, text)
    return Action(spec.name, **values), close.end()


def _read_bare(text: str, position: int, platform: Platform, *, first: bool) -> tuple[Action, int]:
    """Reads the name of an action that requires no argument, alone on its line: ``wait`` for ``wait()``."""
    name = _BARE.match(text, position)
    spec = GRAMMAR[platform].get(name[1]) if name else None
    if name is None or spec is None or any(argument.required for argument in spec.arguments):
        raise ParseError("bad_call" if first else "trailing_text", text)
    return Action(spec.name), name.end()


def _check_complete(spec: ActionSpec, values: dict[str, Any], text: str) -> None:
    if any(argument.required and argument.field not in values for argument in spec.arguments):
        raise ParseError("missing_argument", text)


def _next_argument(text: str, position: int, *, first: bool) -> int:
    """The position where the next argument starts; the first one has no comma before it."""
    if _PAREN.match(text, position):
        raise ParseError("trailing_text", text)
    if first:
        return position
    comma = _COMMA.match(text, position)
    if comma is None:
        raise ParseError("bad_call", text)
    return comma.end()


def _read_argument(text: str, position: int, spec: ActionSpec) -> tuple[Argument | None, str, int]:
    """One argument, None if the action has none of that name, its text, and the position after it.

    The name may be missing where no argument is required: ``finished('42')``.
    """
    keyword = _KEYWORD.match(text, position)
    if keyword is not None:
        argument, position = spec.argument(keyword[1]), keyword.end()
    elif text[position : position + 1] in _QUOTED and not any(argument.required for argument in spec.arguments):
        argument = spec.arguments[0] if spec.arguments else None
    else:
        raise ParseError("bad_call", text)
    value = _PLAIN.match(text, position)
    if value is None or argument is None or argument.kind == "text":
        value = _QUOTED[text[position]].match(text, position)
    if value is None:
        raise ParseError("bad_string", text)
    return argument, value[value.lastindex or 0], value.end()


def _read_value(argument: Argument, raw: str, text: str) -> Any:
    if argument.kind == "box":
        return _read_box(raw, text)
    value = _ESCAPE.sub(_unescape, raw)
    if argument.kind == "text":
        return value
    if argument.kind == "keys":
        return _read_keys(value, text)
    words = value.lower()  # "scroll down", too; UI-TARS's parser looks for "up" first
    return next((name for name in ("up", *DIRECTIONS) if name in words), "") or _refuse("bad_direction", text)


def _read_keys(value: str, text: str) -> str:
    keys = split_keys(value) if len(value) <= MAX_KEY_CHARS else _refuse("too_many_keys", text)
    if not all(map(is_key, keys)):
        raise ParseError("unknown_key", text)
    return " ".join(keys) or _refuse("empty_key", text)


def _unescape(match: re.Match[str]) -> str:
    """The character of one escape, or the escape itself if there is no such character."""
    high, low, *codes, other = match.groups()
    if high is not None:  # a pair of surrogates
        return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
    if other is not None:
        return _ESCAPES.get(other, match[0])
    code = next(int(code, 16) for code in codes if code is not None)
    return match[0] if code > 0x10FFFF or 0xD800 <= code < 0xE000 else chr(code)


def _refuse(reason: str, text: str) -> NoReturn:
    raise ParseError(reason, text)


def _read_box(raw: str, text: str) -> Point:
    value = raw.replace("<|box_start|>", "").replace("<|box_end|>", "").strip()
    for pattern in _BOXES:
        match = pattern.fullmatch(value)
        if match:
            numbers = [float(group) for group in match.groups() if group is not None]
            if any(abs(number) > MAX_COORDINATE for number in numbers):
                raise ParseError("bad_coordinate", text)
            if len(numbers) == 2:
                return numbers[0], numbers[1]
            return (numbers[0] + numbers[2]) / 2, (numbers[1] + numbers[3]) / 2
    raise ParseError("bad_box", text)
