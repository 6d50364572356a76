"""Turns actions into commands for an official OSWorld server that can be sent twice and return promptly.

The server starts ``python -c <source>``, collects its output through pipes and replies when they are closed. Therefore
the source does not pass these pipes to programs that it starts. It first creates a marker file; a repeated request
finds the marker and does nothing.

pyautogui types ASCII only. Other characters get spare key codes of the X server, as xdotool and our own guest do it:
terminals do not paste at ctrl+v, and each program has another way to enter a code point. A program looks a key code up
when it reads the event, so a code is only given away, and used, while the screen is still.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from osworld_gym.guest.pixels import pixel_inside
from osworld_gym.types import Action, Point
from osworld_gym.uitars.pyautogui import to_pyautogui

MARKER = "/tmp/.osworld-gym-action-"  # + key: a file in the desktop; the next batch removes it

_FRAME = """\
import os, sys
try:
    os.close(os.open({marker!r}, os.O_CREAT | os.O_EXCL))
except FileExistsError:
    sys.exit(0)
if os.path.exists({previous!r}):
    os.unlink({previous!r})
sys.stderr = os.fdopen(os.dup(2), "w")
for stream in (1, 2):
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
import pyautogui
pyautogui.FAILSAFE = False
{actions}
"""

#: gives the characters of ``text`` key codes, and presses them if ``press``; python-xlib is a requirement of pyautogui
_OWN_KEYS = """\
from Xlib import X
from Xlib.display import Display
from Xlib.ext import xtest
display = Display()
first, last = display.display.info.min_keycode, display.display.info.max_keycode
rows = list(display.get_keyboard_mapping(first, last - first + 1))
wanted = [ord(char) if ord(char) < 0x100 else 0x1000000 + ord(char) for char in {text!r}]
codes, spare = {{}}, []
for code, row in enumerate(rows, first):
    given = (row[0] > 0x1000000 or 0xA0 <= row[0] < 0x100) and set(row) <= {{0, row[0]}}
    if row[0] in wanted:
        codes[row[0]] = code
    elif given or not any(row):
        spare.append(code)
for keysym in wanted:
    if keysym not in codes:
        codes[keysym] = spare.pop()
        display.change_keyboard_mapping(codes[keysym], [[keysym] * len(rows[0])])
display.sync()
for keysym in wanted if {press} else ():
    xtest.fake_input(display, X.KeyPress, codes[keysym])
    xtest.fake_input(display, X.KeyRelease, codes[keysym])
display.sync()
"""
OWN_KEYS = 8  # most key codes that are required at a time; X servers have some dozens to spare

_OTHERS = re.compile(r"([^\x00-\x7f]+)")
_NO_KEY = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters and surrogates


class Then(Enum):
    """The event to wait for after a batch."""

    still = "still"  #: the screen is still
    waited = "waited"  #: after a ``wait``: the screen has been still for longer


@dataclass(frozen=True, slots=True)
class Batch:
    """Actions that are sent to the server in one request.

    Args:
        actions: the actions, in the order in which they are performed.
        then: what to wait for afterwards.
        own_keys: characters that pyautogui cannot type. ``actions`` is then the one that types them, or empty if they
            only get their key codes.
    """

    actions: tuple[Action, ...]
    then: Then
    own_keys: str = ""


def batches(actions: Sequence[Action], size: tuple[int, int]) -> list[Batch]:
    """Splits the actions, in order, after each ``wait`` and around characters that pyautogui cannot type.

    Points are rounded to pixels and those outside the screen (``size``, pixels) moved to its edge: pyautogui does not
    accept all of them.
    """
    out: list[Batch] = []
    batch: list[Action] = []

    def cut(then: Then) -> None:
        nonlocal batch
        out.append(Batch(tuple(batch), then))
        batch = []

    for piece in (piece for action in actions for piece in _pieces(action)):
        if piece.kind == "wait":
            cut(Then.waited)
        elif piece.kind == "type" and _OTHERS.match(piece.content or ""):
            if batch:
                cut(Then.still)
            out += [Batch(typing, Then.still, piece.content or "") for typing in ((), (piece,))]
        else:
            batch.append(replace(piece, start=_inside(piece.start, size), end=_inside(piece.end, size)))
    if batch:
        cut(Then.still)
    return out


def _pieces(action: Action) -> Iterator[Action]:
    """Splits a text into parts that pyautogui types, and those of few enough different characters that it does not."""
    if action.kind != "type":
        yield action
        return
    for place, part in enumerate(_OTHERS.split(_NO_KEY.sub("", action.content or ""))):
        for text in _few_different(part) if place % 2 else [part]:
            if text:
                yield replace(action, content=text)


def _few_different(text: str) -> Iterator[str]:
    """The text in pieces of at most ``OWN_KEYS`` different characters."""
    start = 0
    for end in range(1, len(text) + 1):
        if len(set(text[start:end])) > OWN_KEYS:
            yield text[start : end - 1]
            start = end - 1
    yield text[start:]


def _inside(point: Point | None, size: tuple[int, int]) -> Point | None:
    return None if point is None else pixel_inside(point, size)


def action_command(batch: Batch, key: str, previous: str) -> list[str]:
    """The command for ``/execute``; empty if there is nothing to do.

    Args:
        batch: a batch of actions, as :func:`batches` returns them.
        key: unique id of this batch.
        previous: the id of the previous batch, or "".

    Raises:
        ValueError: an action is not available on a desktop.
    """
    if batch.own_keys:
        source = _OWN_KEYS.format(text=batch.own_keys, press=bool(batch.actions))
    else:
        source = to_pyautogui(batch.actions)
    if not source:
        return []
    return ["python3", "-c", _FRAME.format(marker=MARKER + key, previous=MARKER + previous, actions=source)]
