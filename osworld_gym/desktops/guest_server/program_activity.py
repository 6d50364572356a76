"""Whether a program that was just launched still works, from a machine's ``/proc``: one that does may open a window."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

LIST = "cat /proc/[0-9]*/stat 2>/dev/null"  # shell command that prints what read_processes reads
_STAT = re.compile(r"^(\d+) \(.*\) ([A-Za-z]) (.+)$", re.MULTILINE)
_TIMES, _START = slice(10, 14), 18  # places after the state in /proc/PID/stat: own and children's times, start

Ident = tuple[int, int]  # process id and start time, which no later process has


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
    found = {}
    for number, state, rest in _STAT.findall(listing):
        fields = rest.split()
        if len(fields) > _START:
            found[int(number), int(fields[_START])] = Process(state, sum(map(int, fields[_TIMES])))
    return found


def works(before: Collection[Ident], last: Mapping[Ident, Process], now: Mapping[Ident, Process]) -> bool:
    """Whether a process that is not among ``before`` worked between two listings.

    Only processes in both count, which leaves out those of the listing itself.
    """
    both = (now.keys() & last.keys()) - set(before)
    return any(now[one].state in "RD" or now[one].ticks != last[one].ticks for one in both)
