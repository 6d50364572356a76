"""The screen: the X server's framebuffer mapped into memory, as PNG, and the wait until it is still."""

from __future__ import annotations

import io
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from ..process.reaction import Reaction
from .repeating_changes import RepeatingChanges

POLL = 0.01  # seconds between two reads of the framebuffer
PAINT_POLL = 0.03  # seconds between two reads of a window that is still plain
REFRESH = 0.25  # seconds between two listings of the desktop's processes
CALM = 0.03  # seconds without work and without new content after which a reaction is over
ASLEEP = 0.01  # seconds without work after which the window manager is woken once more, before the reaction is over


class Frame(NamedTuple):
    """One picture of the screen."""

    png: bytes  #: compressed with zlib level 1
    changes: int  #: how often the screen had changed when it was taken
    black: bool  #: whether every pixel is black


class Screen:
    """Reads Xvfb's framebuffer file (``-fbdir``, XWD format, 32 bits a pixel), cursor included.

    Args:
        path: the file ``Xvfb_screen0``.
        still_working: returns how many seconds an unchanged screen must be watched while the desktop's processes work.
        nudge: called while waiting for a still screen, to wake a window manager that sleeps on an unhandled event; with
            True it must send its message now.
        reaction: follows the desktop's processes during one :meth:`wait_reacted`; None: that waits as
            :meth:`wait_still` does.
    """

    def __init__(
        self,
        path: Path,
        still_working: Callable[[], float],
        nudge: Callable[[bool], None] = lambda _: None,
        reaction: Callable[[], Reaction] | None = None,
    ) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        header = struct.unpack(">25I", self._map[:100])
        self.size = (header[4], header[5])
        self._stride, bits = header[12], header[11]
        if bits != 32:
            raise ValueError(f"{path}: expected 32 bits per pixel, got {bits}")
        self._start = header[0] + 12 * header[19]
        self._end = self._start + self._stride * self.size[1]
        self._still_working, self._nudge, self._reaction = still_working, nudge, reaction
        self._lock = threading.Lock()
        self._repeating = RepeatingChanges()
        self._last = self.raw()
        self._last_new = time.monotonic()  # when new content was last seen
        #: how often a read found the screen changed; only grows
        self.changes = 0

    def raw(self) -> bytes:
        """The current pixels: BGRX, ``height * stride`` bytes."""
        return self._map[self._start : self._end]

    def image(self, raw: bytes | None = None) -> Image.Image:
        """RGB image of ``raw``, by default of the current screen."""
        data = self.raw() if raw is None else raw
        return Image.frombuffer("RGB", self.size, data, "raw", "BGRX", self._stride, 1)

    def frame(self) -> Frame:
        """The current screen."""
        raw, changes = self._read()
        image, buffer = self.image(raw), io.BytesIO()
        image.save(buffer, format="PNG", compress_level=1)
        return Frame(buffer.getvalue(), changes, image.getbbox() is None)

    def png(self) -> bytes:
        """The current screen as PNG."""
        return self.frame().png

    def still_for(self) -> float:
        """Seconds since more than a caret or a clock changed."""
        self._read()
        return time.monotonic() - self._last_new

    def wait_still(self, quiet: float, deadline: float) -> bool:
        """Waits until nothing but carets and clocks has changed for ``quiet`` seconds and no process is at work.

        Returns:
            True when the screen is still, False when ``deadline`` seconds passed first.
        """
        return self._wait(quiet, deadline, None)

    def wait_reacted(self, quiet: float, deadline: float) -> bool:
        """As :meth:`wait_still`, but also ends as soon as the reaction to what was done just before is over.

        That is when for ``CALM`` seconds there was no new content and no process of the desktop has run, could run, or
        has a timer due that its last work may have set. Slower programs, and those whose timers are not known, are
        awaited by the rules of :meth:`wait_still`.
        """
        return self._wait(quiet, deadline, None if self._reaction is None else self._reaction())

    def _wait(self, quiet: float, deadline: float, reaction: Reaction | None) -> bool:
        start = since = time.monotonic()
        woken = float("-inf")  # when the window manager was woken while everything slept
        while True:
            if reaction is None or woken < reaction.worked:
                self._nudge(False)
            self._read()
            now, changed = time.monotonic(), max(self._last_new, start)
            if changed > since:
                since = changed
            elif now - changed < self._still_working():
                since = now
            if now - since >= quiet:
                return True
            if reaction is not None:
                calm = now - max(reaction.calm_since(now), changed)
                if woken < reaction.worked:
                    if now - max(reaction.idle_since, changed) >= ASLEEP:  # timers may be due: no need to wait for them
                        self._nudge(True)
                        woken = now
                elif calm >= CALM and reaction.complete():
                    return True
            if now - start >= deadline:
                return False
            time.sleep(POLL)  # a mapped framebuffer has no event to wait for

    def wait_painted(self, box: tuple[int, int, int, int], deadline: float) -> bool:
        """Waits until a window shows more than one colour: a new one is plain until its program first draws it.

        Args:
            box: x, y, width, height of its content in pixels.
            deadline: seconds; a window may stay plain.

        Returns:
            whether the window shows more than one colour; False also if no part of it is on the screen.
        """
        x, y, width, height = box
        inside = (max(0, x), max(0, y), min(self.size[0], x + width), min(self.size[1], y + height))
        if inside[0] >= inside[2] or inside[1] >= inside[3]:
            return False  # none of it is on the screen
        end = time.monotonic() + deadline
        while (colours := self.image().crop(inside).getcolors(1)) is not None and time.monotonic() < end:
            time.sleep(PAINT_POLL)  # as above
        return colours is None

    def _read(self) -> tuple[bytes, int]:
        """Reads (current pixels, number of changes so far) and records new content. Shared by all waiting threads."""
        with self._lock:
            before, self._last = self._last, self.raw()
            now = time.monotonic()
            if self._last != before:
                self.changes += 1
                if self._repeating.is_new(self.image(before), self.image(self._last), now):
                    self._last_new = now
            return self._last, self.changes


class Workload:
    """How long an unchanged screen must be watched; lists the desktop's processes again every ``REFRESH`` seconds."""

    def __init__(self, processes: Callable[[], list[int]], watch: Callable[[list[int]], float]) -> None:
        self._processes, self._watch = processes, watch
        self._pids: list[int] = []
        self._listed = float("-inf")

    def __call__(self) -> float:
        now = time.monotonic()
        if now - self._listed > REFRESH:
            self._pids, self._listed = [pid for pid in self._processes() if pid != os.getpid()], now
        return self._watch(self._pids)
