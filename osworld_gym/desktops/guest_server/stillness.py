"""Detects a still screen from a server's frames: successive frames are equal except for a caret."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

PAUSE = 0.05  # seconds between two frames, in addition to the time that each takes
CARET = (4, 48)  # a change within these (width, height) pixels is a blinking caret and ignored


def differ(before: Pixels, after: Pixels) -> bool:
    """Whether more than a caret changed between two frames ``[H, W, 3]``."""
    if before.shape != after.shape:
        return True
    changed = (before != after).any(axis=-1)
    columns, rows = np.flatnonzero(changed.any(axis=0)), np.flatnonzero(changed.any(axis=1))
    if not len(rows):
        return False
    width, height = columns[-1] - columns[0] + 1, rows[-1] - rows[0] + 1
    return bool(width > CARET[0] or height > CARET[1])


def await_still(screenshot: Callable[[], Pixels], quiet: float, deadline: float) -> bool:
    """Polls frames ``[H, W, 3]`` until only a caret has changed for ``quiet`` seconds; False after ``deadline`` s."""
    frame = screenshot()
    start = since = time.monotonic()
    while True:
        time.sleep(PAUSE)  # the protocol has no event for a change of the screen
        last, frame = frame, screenshot()
        now = time.monotonic()
        if differ(last, frame):
            since = now
        if now - since >= quiet:
            return True
        if now - start >= deadline:
            return False
