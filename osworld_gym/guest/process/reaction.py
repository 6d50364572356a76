"""Whether the desktop has finished its reaction to an action: every process sleeps, and no timer of its is due.

Watching the framebuffer only shows that nothing was drawn for a while. The kernel knows more: how much processor time
each process has used, whether a thread is running or could be, and for how long a main loop sleeps. When no process has
run for a while and none has a reason to run soon, a longer wait shows nothing new. docs/stillness.md has the rules.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterable
from math import inf

from .processes import any_running, state_of
from .program_clock import clock_rate

#: seconds of a program's own clock after its last work within which a timer of its is awaited: LibreOffice's toolbars
#: follow by one of 0.3
HORIZON = 0.32
LIGHT = 1_000_000  #: nanoseconds: a program that its timer woke and that used less has done nothing
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of the kernel: the time of all threads of a process, in nanoseconds

# numbers of system calls on x86-64, and the place of an argument among the fields of /proc/PID/syscall
_UNTIMED = frozenset(("0", "34", "43", "45", "47", "61", "130", "288"))  # read, pause, accept, recv, wait, sigsuspend
_MILLISECONDS = {"7": 3, "232": 4, "281": 4}  # poll, epoll_wait, epoll_pwait: a number, negative for no timeout
_RELATIVE = {
    "271": 3,
    "23": 5,
    "270": 5,
    "441": 4,
    "35": 1,
}  # ppoll, select, pselect6, epoll_pwait2, nanosleep: address
_SELECT, _CLOCK_NANOSLEEP, _FUTEX = "23", "230", "202"
_FUTEX_WAIT, _FUTEX_WAIT_BITSET, _FUTEX_REALTIME = 0, 9, 0x100

#: (process id, address) → (seconds, nanoseconds or microseconds) at that address of the process
Memory = Callable[[int, int], tuple[int, int]]


def _memory(pid: int, address: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        seconds, part = struct.unpack("=qq", os.pread(file.fileno(), 16, address))
    return seconds, part


def wakes(pid: int, fields: list[str], now: float, memory: Memory = _memory) -> float | None:
    """When a sleeping program's first thread wakes at the latest, as far as its system call tells.

    Args:
        pid: process id of the program.
        fields: the words of its ``/proc/PID/syscall`` on x86-64.
        now: monotonic time in seconds at which it went to sleep.
        memory: reads a time in the process.

    Returns:
        monotonic time in seconds; inf if it sleeps until something happens; None if it runs, or if it is not known.

    Raises:
        OSError: the process has ended, or its memory may not be read.
    """
    number = fields[0]
    arguments = [int(field, 16) for field in fields[1:]] if number.isdigit() else []
    if number in _UNTIMED:
        return inf
    if number in _MILLISECONDS:
        timeout = arguments[_MILLISECONDS[number] - 1] & 0xFFFFFFFF
        return inf if timeout >= 1 << 31 else now + timeout / 1000
    if number in _RELATIVE:
        address, unit = arguments[_RELATIVE[number] - 1], 1e-6 if number == _SELECT else 1e-9
        return now + _seconds(memory(pid, address), unit) if address else inf
    if number == _FUTEX and arguments[1] & 0x7F in (_FUTEX_WAIT, _FUTEX_WAIT_BITSET):
        kind, address = arguments[1], arguments[3]
        if not address:
            return inf
        at = _seconds(memory(pid, address))
        return at + (now if kind & 0x7F == _FUTEX_WAIT else _offset(bool(kind & _FUTEX_REALTIME)))
    if number == _CLOCK_NANOSLEEP:
        clock, absolute, address = arguments[:3]
        at = _seconds(memory(pid, address))
        return at + (_offset(clock == time.CLOCK_REALTIME) if absolute else now)
    return None


def _seconds(parts: tuple[int, int], unit: float = 1e-9) -> float:
    return parts[0] + parts[1] * unit


def _offset(real: bool) -> float:
    """The difference to add to a time of the system's clock, or of the monotonic one, to get monotonic time."""
    return time.monotonic() - time.time() if real else 0.0


def _wakes(pid: int, now: float) -> float | None:
    if os.uname().machine != "x86_64":
        return None
    try:
        with open(f"/proc/{pid}/syscall", encoding="ascii") as file:
            fields = file.read().split()
        ended = fields[:1] == ["-1"] and (state := state_of(pid)) is not None and state.letter == "Z"
        return inf if ended else wakes(pid, fields, now)
    except (FileNotFoundError, ProcessLookupError):
        return inf  # it has ended
    except OSError:
        return None


def used(pid: int) -> int | None:
    """Processor time of all threads of a process in nanoseconds; None if it has ended."""
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPU_CLOCK)
    except OSError:
        return None


class _Program:
    """The state of one process, as far as it was read.

    Args:
        start: monotonic time in seconds of the action.
        horizon: seconds after its last work within which a timer of its is awaited.
    """

    __slots__ = ("due", "horizon", "timed", "used", "used_before", "worked")

    def __init__(self, start: float, horizon: float) -> None:
        self.horizon = horizon
        self.used = -1  # processor time in nanoseconds; -1 before the first look
        self.used_before = -1  # the same before its present or last run
        self.timed = False  # whether its timer began that run
        self.worked = start  # monotonic time in seconds of its last run, except for runs in which a timer did nothing
        self.due: float | None = None  # monotonic time in seconds at which its main loop wakes; None: not known

    def looked_at(self, used: int, now: float) -> bool:
        """Notes that it has run since the last look; whether that was work, not a timer that did nothing."""
        if self.due is not None:  # else the same run goes on
            self.used_before, self.timed = self.used, now >= self.due
        light = self.timed and used - self.used_before < LIGHT
        if self.used >= 0 and not light:
            self.worked = now
        self.used = used
        return not light


class Reaction:
    """Follows the desktop's processes from an action until all of them sleep. For one wait.

    Args:
        programs: lists the processes that draw.
        session: lists the X server, the window manager and the message bus. Their timers draw nothing.

    Attributes:
        idle_since: monotonic time in seconds since which no process has worked, as of the last look.
    """

    def __init__(self, programs: Callable[[], Iterable[int]], session: Callable[[], Iterable[int]]) -> None:
        self._programs, self._session = programs, session
        self._start = self.idle_since = self._looked = time.monotonic()
        self._seen: dict[int, _Program] = {}
        self._others: dict[int, int | None] = {}
        self._list()

    def _list(self) -> bool:
        """Lists the processes again; whether there are new ones."""
        programs = [pid for pid in self._programs() if pid != os.getpid()]
        new = [pid for pid in programs if pid not in self._seen]
        seen = {pid: self._seen.get(pid) or self._program(pid) for pid in programs}
        self._seen, self._others = seen, {pid: self._others.get(pid) for pid in self._session()}
        return bool(new)

    def _program(self, pid: int) -> _Program:
        return _Program(self._start, HORIZON / clock_rate(pid))

    def calm_since(self, now: float) -> float:
        """Looks at every process; :attr:`idle_since`, or ``now`` if a timer is due that the last work may have set."""
        ran = [self._ran(pid, program, now) for pid, program in self._seen.items()]
        for pid, before in self._others.items():
            self._others[pid] = used(pid)
            ran.append(self._others[pid] != before)
        self._looked = now
        if any(ran) or any_running((*self._seen, *self._others)):
            self.idle_since = now
        return now if any(self._pending(program, now) for program in self._seen.values()) else self.idle_since

    @property
    def worked(self) -> float:
        """Monotonic time in seconds at which a program last worked; at first, that of the action."""
        return max((program.worked for program in self._seen.values()), default=self._start)

    def _ran(self, pid: int, program: _Program, now: float) -> bool:
        """Whether a program has run since the last look, unless its timer woke it and it did nothing.

        A timer that draws makes the X server run, which counts. LibreOffice has one of 150 ms after an edit.
        """
        time_used = used(pid)
        if time_used is None or time_used == program.used:
            return False  # what ends a process also wakes its parent
        worked = program.looked_at(time_used, now)
        program.due = _wakes(pid, self._looked)  # at the earliest: it slept since the last look
        return worked

    def _pending(self, program: _Program, now: float) -> bool:
        """Whether a timer that the program may have set when it last worked has not fired yet, or is not known."""
        end = program.worked + program.horizon
        return program.due is None or (now < end and program.due < end)

    def complete(self) -> bool:
        """Whether no process has started unseen; looked at before the wait ends, since listing takes milliseconds."""
        if self._list():
            self.idle_since = time.monotonic()
            return False
        return True
