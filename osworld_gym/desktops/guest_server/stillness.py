"""Whether a desktop is still, seen from outside: its frames differ by a caret at most, its new programs are idle."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

LIST = "cat /proc/[0-9]*/stat 2>/dev/null"  # shell command that prints what read_processes reads
_STAT = re.compile(r"^(\d+) \(.*\) ([A-Za-z]) (.+)$", re.MULTILINE)
_NUMBER = re.compile(r"[0-9]{1,20}")
_TIMES, _START = slice(10, 14), 18  # places after the state in /proc/PID/stat: own and children's times, start
Ident = tuple[int, int]  # process id and start time, which no later process has
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


@dataclass(frozen=True, slots=True)
class Process:
    """One process.

    Args:
        state: the kernel's letter, such as R (runs), D (waits for a disk), S (sleeps).
        ticks: processor time of it and of its children that have ended, in clock ticks.
    """

    state: str
    ticks: int


def read_processes(listing: str) -> dict[Ident, Process]:
    """Parses lines of ``/proc/PID/stat``; others are ignored."""
    processes = {}
    for number, state, rest in _STAT.findall(listing):
        fields = rest.split()
        if len(fields) > _START and all(map(_NUMBER.fullmatch, (number, fields[_START], *fields[_TIMES]))):
            processes[int(number), int(fields[_START])] = Process(state, sum(map(int, fields[_TIMES])))
    return processes


def works(before: Collection[Ident], last: Mapping[Ident, Process], now: Mapping[Ident, Process]) -> bool:
    """Whether a process that is not among ``before`` worked between two listings.

    Only processes in both count, which leaves out those of the listing itself.
    """
    both = (now.keys() & last.keys()) - set(before)
    return any(now[one].state in "RD" or now[one].ticks != last[one].ticks for one in both)
