"""The processes of one desktop: lists them, checks whether any is working, and ends them all.

The guest is a subreaper: every process that it starts stays its descendant, also after a double fork. Every process
also has the desktop's marker in its environment, so that the owner finds it when the guest itself was killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MARKER = "OSWORLD_GYM_DESKTOP"
WORK, TIMER = 1.0, 0.4  #: seconds that an unchanged screen is watched: for a running program, for one with a timer
MOST = 3.0  #: longest time in seconds that it is watched, when many programs run
LOAD = "/proc/loadavg"
SOON = 260  # milliseconds: GTK's own delays (a pressed button, a file dialog's reply) are at most 250
_POLL = "7"  # number of poll(2) on x86-64; elsewhere main loops use ppoll, whose timeout cannot be read from outside
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36


def become_subreaper() -> None:
    """Orphaned descendants of this process become its children, not init's."""
    _prctl("PR_SET_CHILD_SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def deny_tracing() -> None:
    """Keeps other processes of this user from this one's memory and descriptors, until it executes a program.

    Without it, a program in the desktop could trace the guest, read its token, copy its descriptors and reply in its
    place: a forged reply to a verifier is a forged reward.
    """
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def _prctl(name: str, number: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(number, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name}) failed")


class ProcessState(NamedTuple):
    """The kernel's letter for what a process does (``R`` runs, ``D`` waits for a disk, ``Z`` ended), and its parent."""

    letter: str
    parent: int


def state_of(pid: int | str) -> ProcessState | None:
    """The state of a process or of a thread (``pid/task/thread``); None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return ProcessState(fields[0].decode(), int(fields[1])) if len(fields) > 1 else None


def descendants(root: int) -> dict[int, str]:
    """Every descendant of ``root``: pid → state letter (``R`` running, ``S`` sleeping, ``Z`` ended and not reaped)."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (state := state_of(int(name))) is not None:
            states[int(name)] = state.letter
            children.setdefault(state.parent, []).append(int(name))
    out: dict[int, str] = {}
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        out[pid] = states[pid]
        queue += children.get(pid, ())
    return out


def watch_time(pids: Iterable[int]) -> float:
    """How many seconds an unchanged screen must be watched while these processes work; 0 if they are idle.

    A running process may take long before it changes the screen, and longer on a loaded machine. A process whose timer
    is due soon either changes the screen then, or has a repeating timer that changes nothing (LibreOffice's of 150 and
    300 ms). docs/stillness.md has the measurements.
    """
    pids = list(pids)
    if any_running(pids):
        return min(WORK * contention(), MOST)
    return TIMER if any(map(_timer_due_soon, pids)) else 0.0


def contention() -> float:
    """How many times longer work takes than on an idle machine: runnable processes per core, at least 1."""
    with open(LOAD, encoding="ascii") as file:
        running = int(file.read().split()[3].partition("/")[0])
    return max(1.0, running / len(os.sched_getaffinity(0)))


def _timer_due_soon(pid: int) -> bool:
    if os.uname().machine != "x86_64":
        return False
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            fields = file.read().split()
    except OSError:
        return False
    return fields[:1] == [_POLL] and 0 < int(fields[3], 16) <= SOON


def any_running(pids: Iterable[int]) -> bool:
    """Whether a thread of one of these processes is on a CPU, waits for one, or waits for a disk."""
    for pid in pids:
        try:
            threads = os.listdir(f"/proc/{pid}/task")
        except OSError:
            continue  # it has ended
        for thread in threads:
            state = state_of(f"{pid}/task/{thread}")
            if state is not None and state.letter in "RD":
                return True
    return False


def marked(value: str) -> list[int]:
    """Process ids of this user whose environment has the marker with this value."""
    wanted = f"{MARKER}={value}".encode()
    out = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    out.append(int(name))
        except OSError:
            continue
    return out


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each process; skips those that have ended."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def reap(pids: Iterable[int]) -> None:
    """Reaps those of ``pids`` that are our children and have ended."""
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue


def end_tree(root: int, gentle: Sequence[int] = (), patience: float = 1.0) -> None:
    """Ends every descendant of ``root``, which must be this process.

    ``gentle`` processes (the X server, which removes its own lock) get SIGTERM and ``patience`` seconds; the others get
    SIGKILL at once, repeatedly until none is left.
    """
    send((pid for pid in descendants(root) if pid not in gentle), signal.SIGKILL)
    send(gentle, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while tree := descendants(root):
        reap(tree)
        late = time.monotonic() > deadline
        send((pid for pid in tree if late or pid not in gentle), signal.SIGKILL)
        time.sleep(0.002)  # processes that are not yet our children have no exit event to wait for


def end_marked(value: str, patience: float = 1.0) -> int:
    """Ends every process with this marker (SIGTERM, after ``patience`` seconds SIGKILL); returns their number."""
    pids = marked(value)
    send(pids, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while left := [pid for pid in marked(value) if (state := state_of(pid)) is not None and state.letter != "Z"]:
        if time.monotonic() > deadline:
            send(left, signal.SIGKILL)
        reap(left)
        time.sleep(0.005)
    return len(pids)
