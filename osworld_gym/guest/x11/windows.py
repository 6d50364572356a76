"""The windows of the desktop, from the window manager's lists (EWMH): find, wait for, activate, close."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from PIL import Image
from Xlib import X, Xatom, error
from Xlib.display import Display
from Xlib.protocol import event

from .x_resource import res

POLL = 0.01  # seconds between two polls of the window list
NUDGE = 0.15  # seconds between two messages that wake the window manager
BACKGROUNDS = (0x2E3440, 0x3B5B4A, 0x4A3B5B, 0x5B4A3B, 0x2F4F6F, 0x6F4F2F)  # RGB, chosen by the seed


class Window(NamedTuple):
    """One window of an application. Position and size are those of its content, without the frame, in screen pixels."""

    id: int
    title: str
    name: str  #: ``instance.class`` of WM_CLASS
    x: int
    y: int
    width: int
    height: int
    active: bool
    pid: int = 0  #: process id that the window states (_NET_WM_PID); 0 if it states none

    @property
    def box(self) -> tuple[int, int, int, int]:
        """x, y, width, height."""
        return self.x, self.y, self.width, self.height

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


#: names on OSWorld's machine → names here, in titles and classes
ALIASES = {"Google Chrome": "Chromium", "google-chrome": "chromium"}
DASHES = str.maketrans({"—": "-", "–": "-"})


def _plain(text: str) -> str:
    return text.translate(DASHES)


def _here(name: str) -> str:
    """The name with OSWorld's program names replaced by those used here."""
    for official, ours in ALIASES.items():
        name = name.replace(official, ours)
    return _plain(name)


class Windows:
    """Reads and controls the windows of one X display. ``lock`` guards the shared connection."""

    def __init__(self, display: Display, lock: threading.RLock) -> None:
        self._display, self._lock = display, lock
        self._root = display.screen().root
        self._nudged = float("-inf")
        #: colour ``0xRRGGBB`` that the root window was last painted with; None after a picture
        self.background: int | None = None

    def _property(self, window: Any, name: str) -> Any:
        value = window.get_full_property(self._display.intern_atom(name), X.AnyPropertyType)
        return None if value is None else value.value

    def nudge(self, now_too: bool = False) -> None:
        """Wakes the window manager with a message that it ignores, at most every ``NUDGE`` seconds, or ``now_too``.

        openbox can go to sleep with a window's MapRequest already read into its queue (in containers in 4 of 10 starts
        of a file manager); the window then shows only when the next event arrives. Does nothing while another thread
        uses the connection: a frozen X server blocks that thread and must not block this one.
        """
        now = time.monotonic()
        if (now - self._nudged < NUDGE and not now_too) or not self._lock.acquire(blocking=False):
            return
        try:
            self._nudged = now
            kind = self._display.intern_atom("_OSWORLD_GYM_NUDGE")
            note = event.ClientMessage(window=self._root, client_type=kind, data=(32, [0] * 5))
            self._root.send_event(note, event_mask=X.SubstructureRedirectMask)
            self._display.flush()
        finally:
            self._lock.release()

    def all(self) -> list[Window]:
        """Every window in the window manager's list, in the order in which they were mapped."""
        self.nudge()
        with self._lock:
            ids = self._property(self._root, "_NET_CLIENT_LIST")
            active = self._property(self._root, "_NET_ACTIVE_WINDOW")
            front = int(active[0]) if active is not None and len(active) else 0
            windows = (self._window(int(i), int(i) == front) for i in (ids if ids is not None else ()))
            return [window for window in windows if window is not None]

    def popups(self) -> list[dict[str, int]]:
        """The menus that are open now, the topmost last, as x, y, width and height in screen pixels.

        They are the visible windows without a frame; tooltips are not listed.
        """
        with self._lock:
            ids = self._property(self._root, "_NET_CLIENT_LIST")
            clients = {int(i) for i in (ids if ids is not None else ())}
            boxes = (self._popup(window, clients) for window in self._root.query_tree().children)
            return [box for box in boxes if box is not None]

    def _popup(self, window: Any, clients: set[int]) -> dict[str, int] | None:
        try:
            attributes = window.get_attributes()
            if attributes.map_state != X.IsViewable or attributes.win_class != X.InputOutput:
                return None
            kinds = self._property(window, "_NET_WM_WINDOW_TYPE")
            tooltip = self._display.intern_atom("_NET_WM_WINDOW_TYPE_TOOLTIP")
            # a frame of the window manager has the application's window as its child
            if (kinds is not None and tooltip in kinds) or clients & {w.id for w in window.query_tree().children}:
                return None
            box = window.get_geometry()
        except (error.BadWindow, error.BadDrawable):
            return None  # closed since it was listed
        on_screen = box.x + box.width > 0 and box.y + box.height > 0
        return {"x": box.x, "y": box.y, "width": box.width, "height": box.height} if on_screen else None

    def _title(self, window: Any) -> str:
        """The EWMH title, in UTF-8; if missing, WM_NAME, in Latin-1 if its type is STRING."""
        for name in ("_NET_WM_NAME", "WM_NAME"):
            entry = window.get_full_property(self._display.intern_atom(name), X.AnyPropertyType)
            if entry is not None and entry.value:
                if not isinstance(entry.value, bytes):
                    return str(entry.value)
                return entry.value.decode("latin-1" if entry.property_type == Xatom.STRING else "utf-8", "replace")
        return ""

    def _window(self, ident: int, active: bool) -> Window | None:
        window = self._display.create_resource_object("window", ident)
        try:
            title = self._title(window)
            name = window.get_wm_class() or ("", "")
            box = window.get_geometry()
            at = self._root.translate_coords(window, 0, 0)
            pid = self._property(window, "_NET_WM_PID")
        except (error.BadWindow, error.BadDrawable):
            return None  # closed since it was listed
        return Window(ident, title, ".".join(name), at.x, at.y, box.width, box.height, active, _number(pid))

    def clients(self) -> set[int] | None:
        """Process ids connected to the X server; None if the server lacks the X-Resource extension."""
        with self._lock:
            if not self._display.has_extension("X-Resource"):
                return None
            everyone = [{"client": 0, "mask": res.LocalClientPIDMask}]
            answer = self._display.res_query_client_ids(everyone)
            return {number for client in answer.ids for number in client.value}

    def find(self, name: str, *, strict: bool = False, by_class: bool = False) -> Window | None:
        """The first window whose title contains ``name`` (ignoring case), or equals ``name`` if ``strict``.

        ``by_class`` matches ``instance.class`` instead of the title. The rules are wmctrl's (``-F``, ``-x``), except
        that dashes of all lengths are equal and that :data:`ALIASES` apply.
        """
        windows = self.all()
        for wanted in dict.fromkeys((name, _here(name))):
            for window in windows:
                text = _plain(window.name if by_class else window.title)
                if text == wanted or (not strict and wanted.lower() in text.lower()):
                    return window
        return None

    def wait(self, done: Callable[[list[Window]], bool], deadline: float) -> bool:
        """Waits until ``found(windows)`` is true; returns False after ``deadline`` seconds."""
        end = time.monotonic() + deadline
        while not done(self.all()):
            if time.monotonic() >= end:
                return False
            time.sleep(POLL)
        return True

    def activate(self, window: Window) -> None:
        """Raises and focuses the window."""
        self._ask(window, "_NET_ACTIVE_WINDOW", [2, X.CurrentTime, 0, 0, 0])

    def close(self, window: Window) -> None:
        """Asks the window to close, as its close button does."""
        self._ask(window, "_NET_CLOSE_WINDOW", [X.CurrentTime, 2, 0, 0, 0])

    def _ask(self, window: Window, message: str, data: list[int]) -> None:
        with self._lock:
            target = self._display.create_resource_object("window", window.id)
            note = event.ClientMessage(window=target, client_type=self._display.intern_atom(message), data=(32, data))
            self._root.send_event(note, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
            self._display.sync()

    def paint_picture(self, picture: Image.Image) -> None:
        """Shows an RGB picture of the screen's size as the background."""
        with self._lock:
            depth = self._display.screen().root_depth
            pixmap = self._root.create_pixmap(picture.width, picture.height, depth)
            context = pixmap.create_gc()
            pixmap.put_pil_image(context, 0, 0, picture)
            self._root.change_attributes(background_pixmap=pixmap)
            self.background = None
            self._root.clear_area(0, 0, 0, 0)
            context.free()
            pixmap.free()
            self._display.sync()

    def apply_seed(self, seed: int) -> None:
        """Gives the desktop the background of ``seed``; it shows when this returns. A seed changes nothing else."""
        self.paint_root(BACKGROUNDS[seed % len(BACKGROUNDS)])

    def paint_root(self, colour: int) -> None:
        """Fills the background with ``0xRRGGBB``."""
        with self._lock:
            self._root.change_attributes(background_pixel=colour)
            self.background = colour
            self._root.clear_area(0, 0, 0, 0)
            self._display.sync()


def _number(value: Any) -> int:
    """The first number of a property; 0 if it has none."""
    return int(value[0]) if value is not None and not isinstance(value, bytes) and len(value) else 0
