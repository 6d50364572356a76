"""Turns actions (dicts) into mouse and key events with XTest. The only module that touches the input devices."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from Xlib import X
from Xlib.display import Display
from Xlib.ext import xtest

from ..pixels import pixel_inside
from .active_application import reads_events
from .keyboard import Keyboard, name_keysym

LEFT, MIDDLE, RIGHT = 1, 2, 3
WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
WHEEL_CLICKS = 5  # OSWorld's UI-TARS adapter scrolls by 5
MAX_WHEEL_CLICKS = 1000  # of one scroll, as in osworld_gym.types, which a guest does not import
DOUBLE_CLICK = 0.4  # seconds; the desktop's GTK settings use the same value
DOUBLE_CLICK_DISTANCE = 8  # pixels
DRAG_STEPS = 8
LONG_PRESS = 0.8  # seconds
WAIT = 5.0  # longest ``wait`` action in seconds; it ends earlier when the screen is still
READ = 10.0  # longest wait in seconds for an application that has not read its keys
PIECE = 256  # keys sent between two checks of the time limit

Settle = Callable[[float, float], bool]


class Inputs:
    """Mouse and keyboard of one X display.

    Args:
        display: the connection, shared; ``lock`` guards it.
        size: (width, height) of the screen in pixels.
        settle: waits until the screen is still: ``(quiet, deadline)`` in seconds.
    """

    def __init__(self, display: Display, lock: threading.RLock, size: tuple[int, int], settle: Settle) -> None:
        self._display, self._lock, self._size, self._settle = display, lock, size, settle
        self._keyboard = Keyboard(display)
        self._last_click: tuple[float, int, int] = (float("-inf"), 0, 0)
        self._until = math.inf  # monotonic time in seconds at which the running action is cut off
        self._cut = False  # whether it was cut off
        self.kinds: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "click": lambda a: self.click(a.get("start"), LEFT, 1),
            "left_double": lambda a: self.click(a.get("start"), LEFT, 2),
            "left_triple": lambda a: self.click(a.get("start"), LEFT, 3),
            "right_single": lambda a: self.click(a.get("start"), RIGHT, 1),
            "middle_single": lambda a: self.click(a.get("start"), MIDDLE, 1),
            "hover": lambda a: self.move(a["start"]),
            "long_press": lambda a: self.long_press(a["start"]),
            "drag": lambda a: self.drag(a.get("start"), a["end"]),
            "scroll": lambda a: self.scroll(a.get("start"), a["direction"], a.get("clicks")),
            "hotkey": lambda a: self.hotkey(a.get("key") or ""),
            "keydown": lambda a: self.hold(a.get("key") or "", X.KeyPress),
            "keyup": lambda a: self.hold(a.get("key") or "", X.KeyRelease),
            "type": lambda a: self.type(a.get("content") or ""),
            "press_enter": lambda a: self.hotkey("enter"),  # noqa: ARG005
            "wait": lambda a: self._wait(),  # noqa: ARG005
        } | dict.fromkeys(("finished", "call_user", "open_app", "press_home", "press_back"), lambda a: None)  # noqa: ARG005

    def perform(self, action: Mapping[str, Any], until: float = math.inf) -> bool:
        """Performs one action ``{"kind", "start", "end", "key", "content", "direction", "clicks"}``.

        Args:
            action: its points are in screen pixels.
            until: monotonic time in seconds after which the rest of a long text is not typed. It is also left out if
                its characters require a new key map and the application has not read the earlier keys in time.

        Returns:
            whether the action was performed completely.

        Raises:
            ValueError: the kind is unknown, or an argument is missing or of the wrong type.
        """
        kind = action.get("kind")
        if not isinstance(kind, str) or kind not in self.kinds:
            raise ValueError(f"unknown action {kind!r}; known: {', '.join(self.kinds)}")
        for name in ("key", "content", "direction"):
            if not isinstance(action.get(name), str | None):
                raise ValueError(f"action {kind!r}: {name!r}: expected text, got {action[name]!r}")
        clicks = action.get("clicks")
        if not (clicks is None or (isinstance(clicks, int) and 0 <= clicks <= MAX_WHEEL_CLICKS)):
            raise ValueError(f"action {kind!r}: 'clicks': expected 0..{MAX_WHEEL_CLICKS}, got {clicks!r}")
        self._until, self._cut = until, False
        try:
            self.kinds[kind](action)
        except (IndexError, KeyError, TypeError) as error:
            raise ValueError(f"action {kind!r}: argument missing or wrong: {error}") from error
        return not self._cut

    def pointer(self) -> tuple[int, int]:
        """Position of the pointer, (x, y) in pixels."""
        with self._lock:
            at = self._display.screen().root.query_pointer()
        return at.root_x, at.root_y

    def _fake(self, event: int, detail: int = 0, x: int = 0, y: int = 0) -> None:
        xtest.fake_input(self._display, event, detail, x=x, y=y)

    def move(self, point: tuple[float, float]) -> tuple[int, int]:
        """Moves the pointer to the nearest pixel; a point outside the screen is moved to its edge.

        Raises:
            ValueError: a coordinate is NaN.
        """
        if any(float(value) != float(value) for value in point):
            raise ValueError(f"expected a point of two numbers, got {list(point)}")
        x, y = pixel_inside(point, self._size)
        with self._lock:
            self._fake(X.MotionNotify, 0, x, y)
            self._display.sync()
        return x, y

    def click(self, point: tuple[float, float] | None, button: int, times: int) -> None:
        """Clicks at ``point``, or where the pointer is.

        A click soon after another one at the same position waits, so as not to form a double click.
        """
        x, y = self._settled_click(self.pointer() if point is None else self.move(point))
        with self._lock:
            for _ in range(times):
                self._fake(X.ButtonPress, button)
                self._fake(X.ButtonRelease, button)
            self._display.sync()
        self._last_click = (time.monotonic(), x, y)

    def _settled_click(self, at: tuple[int, int]) -> tuple[int, int]:
        """Returns ``at`` when a press there cannot form a double click with the last click any more."""
        then, last_x, last_y = self._last_click
        near = max(abs(at[0] - last_x), abs(at[1] - last_y)) <= DOUBLE_CLICK_DISTANCE
        if near and (left := then + 1.2 * DOUBLE_CLICK - time.monotonic()) > 0:
            time.sleep(left)
        return at

    @contextmanager
    def _held(self, button: int) -> Iterator[None]:
        x, y = self._settled_click(self.pointer())
        with self._lock:
            self._fake(X.ButtonPress, button)
            self._display.sync()
        self._last_click = (time.monotonic(), x, y)
        try:
            yield
        finally:
            with self._lock:
                self._fake(X.ButtonRelease, button)
                self._display.sync()

    def long_press(self, point: tuple[float, float]) -> None:
        self.move(point)
        with self._held(LEFT):
            time.sleep(LONG_PRESS)  # the duration of the press is the action

    def drag(self, start: tuple[float, float] | None, end: tuple[float, float]) -> None:
        """Presses at ``start``, or where the pointer is, moves in steps, releases at ``end``.

        Applications get time to follow.
        """
        (x0, y0), (x1, y1) = map(float, self.pointer() if start is None else start), map(float, end)
        if start is not None:
            self.move((x0, y0))
        with self._held(LEFT):
            for i in range(1, DRAG_STEPS + 1):
                self._settle(0.02, 0.1)
                part = i / DRAG_STEPS
                self.move((x0 + part * (x1 - x0), y0 + part * (y1 - y0)))
            self._settle(0.04, 0.4)

    def scroll(self, point: tuple[float, float] | None, direction: str, clicks: int | None) -> None:
        """Turns the wheel at ``point``, or where the pointer is; an unknown direction does nothing.

        Args:
            clicks: the clicks of the wheel; None: ``WHEEL_CLICKS``.
        """
        if point is not None:
            self.move(point)
        if direction not in WHEEL:
            return
        with self._lock:
            for _ in range(WHEEL_CLICKS if clicks is None else clicks):
                self._fake(X.ButtonPress, WHEEL[direction])
                self._fake(X.ButtonRelease, WHEEL[direction])
            self._display.sync()

    def hotkey(self, keys: str) -> None:
        """Presses the named keys in order and releases them in reverse; unknown names do nothing."""
        keysyms = self._keysyms(keys)
        if not self._provide(set(keysyms)):
            return
        held: list[int] = []
        with self._lock:
            try:
                for keysym in keysyms:
                    code, shift = self._keyboard.lookup(keysym) or (0, False)
                    for key in (self._keyboard.shift, code) if shift and self._keyboard.shift not in held else (code,):
                        if key in held:
                            self._fake(X.KeyRelease, key)
                            held.remove(key)
                        self._fake(X.KeyPress, key)
                        held.append(key)
            finally:
                for key in reversed(held):
                    self._fake(X.KeyRelease, key)
                self._display.sync()

    def hold(self, keys: str, event: int) -> None:
        """Presses (``X.KeyPress``) or releases the named keys, in order; unknown names do nothing.

        A character that is typed with shift (``?``) is pressed with it, as by pyautogui.
        """
        keysyms = self._keysyms(keys)
        if not self._provide(set(keysyms)):
            return
        with self._lock:
            for keysym in keysyms:
                code, shift = self._keyboard.lookup(keysym) or (0, False)
                shifts = shift and event == X.KeyPress and not self._is_down(self._keyboard.shift)
                if shifts:
                    self._fake(X.KeyPress, self._keyboard.shift)
                self._fake(event, code)
                if shifts:
                    self._fake(X.KeyRelease, self._keyboard.shift)
            self._display.sync()

    def _is_down(self, code: int) -> bool:
        """Whether a key is held now."""
        return bool(self._display.query_keymap()[code // 8] >> code % 8 & 1)

    def _keysyms(self, keys: str) -> list[int]:
        """The keysyms of the names, for the keyboard's present layout; unknown names are left out."""
        with self._lock:
            self._keyboard.refresh()
        return [keysym for name in keys.split() if (keysym := name_keysym(name)) is not None]

    def type(self, text: str) -> None:
        """Types the text; characters without a key are mapped to spare key codes, a newline is Return."""
        with self._lock:
            self._keyboard.refresh()
        for keysyms, extra in self._keyboard.chunks(text):
            if not self._provide(extra):
                return
            for at in range(0, len(keysyms), PIECE):
                if time.monotonic() >= self._until:
                    self._cut = True
                    return
                with self._lock:
                    for keysym in keysyms[at : at + PIECE]:
                        self._tap(*(self._keyboard.lookup(keysym) or (0, False)))
                    self._display.sync()

    def _tap(self, code: int, shift: bool) -> None:
        if shift:
            self._fake(X.KeyPress, self._keyboard.shift)
        self._fake(X.KeyPress, code)
        self._fake(X.KeyRelease, code)
        if shift:
            self._fake(X.KeyRelease, self._keyboard.shift)

    def _provide(self, keysyms: set[int]) -> bool:
        """Gives each keysym a key code; returns False, and cuts the action off, if the old ones are still to be read.

        An application looks up the keys that it has not read yet in the map of the moment at which it reads them.
        """
        if all(self._keyboard.lookup(keysym) for keysym in keysyms):
            return True
        self._settle(0.05, 2.0)  # for applications that cannot be asked
        until = min(self._until, time.monotonic() + READ)
        if self._keyboard.takes_away(keysyms) and not reads_events(self._display.get_display_name(), until):
            self._cut = True
            return False
        with self._lock:
            self._keyboard.provide(keysyms)
        self._settle(0.05, 2.0)  # lets applications read the new map before its keys arrive
        return True

    def _wait(self) -> None:
        self._settle(0.5, max(0.0, min(WAIT, self._until - time.monotonic())))
