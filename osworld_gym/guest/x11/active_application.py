"""Asks the application of the active window whether it has read its events: EWMH's ``_NET_WM_PING``.

A screen that does not change proves nothing about an application that is stopped, or waits for a busy processor.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

from Xlib import X
from Xlib.display import Display
from Xlib.error import BadWindow
from Xlib.protocol import event
from Xlib.xobject.drawable import Window

AGAIN = 0.5  # seconds until the window that is active then is asked


def reads_events(display_name: str, until: float) -> bool:
    """Waits until the application of the active window has read all events that were sent before.

    An application reads its events in order, so that it has read earlier keys when it answers.

    Args:
        display_name: X display; the answer arrives on a connection of its own.
        until: monotonic time in seconds.

    Returns:
        False if it has not answered by then. True also if no window is active, or its application does not implement
        the protocol (xterm), so that it cannot be asked.
    """
    with _connection(display_name) as display:
        root = display.screen().root
        # answers are sent to the root window
        root.change_attributes(event_mask=X.SubstructureNotifyMask)
        stamp = int(1000 * time.monotonic()) & 0xFFFFFFFF  # an answer to an earlier call proves nothing about this one
        while (window := _askable(display)) is not None:
            _ping(display, window, stamp)
            if _answered(display, window, stamp, min(until, time.monotonic() + AGAIN)):
                return True
            if time.monotonic() >= until:
                return False
    return True


@contextmanager
def _connection(name: str) -> Iterator[Display]:
    display = Display(name)
    display.set_error_handler(lambda *_: None)  # a message to a window that has been closed
    try:
        yield display
    finally:
        display.close()


def _askable(display: Display) -> Window | None:
    """The active window, if its application answers pings."""
    active = display.screen().root.get_full_property(display.intern_atom("_NET_ACTIVE_WINDOW"), X.AnyPropertyType)
    if active is None or not len(active.value) or not active.value[0]:
        return None
    window = display.create_resource_object("window", int(active.value[0]))
    try:
        return window if display.intern_atom("_NET_WM_PING") in window.get_wm_protocols() else None
    except BadWindow:
        return None  # closed since it was active


def _ping(display: Display, window: Window, stamp: int) -> None:
    data = [display.intern_atom("_NET_WM_PING"), stamp, window.id, 0, 0]
    window.send_event(
        event.ClientMessage(window=window, client_type=display.intern_atom("WM_PROTOCOLS"), data=(32, data))
    )
    display.flush()


def _answered(display: Display, window: Window, stamp: int, until: float) -> bool:
    """Whether the ping's copy arrives at the root window in time; other events of the root window are skipped."""
    copy = [display.intern_atom("_NET_WM_PING"), stamp, window.id]
    while True:
        while not display.pending_events():
            left = until - time.monotonic()
            if left <= 0 or not select.select([display], [], [], left)[0]:
                return False
        note = display.next_event()
        if note.type & 0x7F == X.ClientMessage and note.data[0] == 32 and list(note.data[1][:3]) == copy:
            return True
