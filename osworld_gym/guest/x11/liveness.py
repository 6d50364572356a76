"""Checks that the X server responds. Its framebuffer is a file that outlives it, so a frame alone proves nothing.

The check also makes the frame whole. The X server takes the pointer off the framebuffer before it paints under it, and
draws it again when it has answered the requests of one connection and turns to the next (``dix/dispatch.c``,
``mi/misprite.c``); replies may be sent before. A reply on the connection that painted is therefore no sign that the
pointer is there again, one on another connection is.
"""

from __future__ import annotations

import threading

from Xlib.display import Display
from Xlib.error import ConnectionClosedError

PATIENCE = 5.0  # seconds for one reply; a busy machine may need several


class XServerLiveness:
    """Queries the X server on a separate thread, so that a frozen server blocks no other thread.

    Args:
        display: a connection that nobody else uses.
        patience: seconds to wait for one reply.
    """

    def __init__(self, display: Display, patience: float = PATIENCE) -> None:
        self._display, self._patience = display, patience
        self._changed = threading.Condition()
        self._asked = self._answered = 0
        self._dead = False
        threading.Thread(target=self._ask, name="liveness", daemon=True).start()

    def responds(self) -> bool:
        """Whether the X server replied, within ``patience`` seconds, to a request sent after this call.

        If so, the pointer is in the framebuffer as well, unless something has been painted under it since.
        """
        with self._changed:
            self._asked += 1
            mine = self._asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._dead or self._answered >= mine, self._patience)
            return not self._dead and self._answered >= mine

    def _ask(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked > self._answered)
                question = self._asked
            try:
                self._display.screen().root.query_pointer()
            except (ConnectionClosedError, OSError):
                with self._changed:
                    self._dead = True
                    self._changed.notify_all()
                return
            with self._changed:
                self._answered = question
                self._changed.notify_all()
