"""The keeper's view of one desktop: its processes, its limits, its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

from osworld_gym.desktops.local.keeper import usage
from osworld_gym.desktops.local.keeper.cgroups import Group
from osworld_gym.desktops.local.keeper.launch import Plan
from osworld_gym.guest.process.processes import end_marked

GRACE = 3.0  #: seconds for a bare desktop, whose processes are not in a sandbox, to clean up
STOPPING = 0.2  #: seconds for a process to stop
STOPPED = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
HIDDEN = 4  #: hidden memory is counted at every 4th check
Processes = Mapping[int, usage.Process]


class SupervisedDesktop:
    """A desktop from its fork to the end of its last process.

    Args:
        number: number of the desktop, unique in this keeper.
        slot: number of its user among the running desktops.
        plan: the plan that was started.
        link: socket to the owner; the desktop is ended when the owner closes it.
        pid: process id of bubblewrap, or of the bare guest; a child of this process.
        info: descriptor on which bubblewrap reports the id of process 1 inside.
        group: the control groups of the desktop.
        record: the content of its record except the process ids.
    """

    def __init__(
        self,
        number: int,
        slot: int,
        plan: Plan,
        link: socket.socket,
        pid: int,
        info: int,
        group: Group,
        record: dict[str, Any],
    ) -> None:
        self.number, self.slot, self.plan, self.link = number, slot, plan, link
        self.pid, self.info, self.group, self.record = pid, info, group, record
        self.report = b""  #: bubblewrap's report so far
        self.inside: int | None = None  #: process id on this machine of process 1 inside, or of a bare guest
        self.listening = True  #: whether the link is registered with the selector
        self.why = ""  #: why the keeper ended it; empty if its owner did
        self.weight = 0  #: bytes of memory at the last :meth:`weigh`
        self._looks, self._hidden = 0, 0
        self._until: float | None = None  # when a bare desktop that is ending is killed

    def tell(self, fields: Mapping[str, Any]) -> None:
        """Sends a message to the owner, which may have ended."""
        with contextlib.suppress(OSError):
            self.link.send(json.dumps(fields).encode())

    def end(self, now: float, why: str = "") -> None:
        """Kills process 1 inside and thereby all others. A bare guest first gets ``GRACE`` seconds to clean up."""
        self.why = self.why or why
        if self.plan.isolated:
            self._kill()
        elif self._until is None:
            self._until = now + GRACE
        elif now >= self._until:
            self._kill()

    def _kill(self) -> None:
        if self.inside is not None:
            self._signal(self.inside, signal.SIGKILL)
        if self.inside is None or not self.plan.isolated:
            self._kill_tree()

    def _kill_tree(self) -> None:
        """Kills the first process and all its descendants.

        It is stopped first, so that it starts nothing meanwhile: a sandbox whose creator ends before it has written the
        user mapping would wait for it forever.
        """
        self._signal(self.pid, signal.SIGSTOP)
        until = time.monotonic() + STOPPING
        with contextlib.suppress(ChildProcessError):  # ended and waited for already
            while os.waitid(os.P_PID, self.pid, STOPPED) is None and time.monotonic() < until:
                time.sleep(0.001)  # a stop has no event that can be awaited with a deadline
        for pid in usage.tree(self.pid, usage.scan()):
            self._signal(pid, signal.SIGKILL)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def finish(self) -> None:
        """After its first process has ended: notes an OOM kill, and ends processes that a bare desktop left."""
        if not self.why and self.group.kills():
            self.why = self._too_much()
        if not self.plan.isolated:
            end_marked(self.plan.marker)

    def poll(self, processes: Processes, now: float) -> None:
        """Ends the desktop if it uses too much memory; continues an end that is in progress."""
        if self._until is not None:
            self.end(now)
        elif self.group.limits_memory:
            if self.group.kills():
                self.end(now, self._too_much())
        elif self.inside is not None:
            self._watch(self.inside, processes, now)

    def _watch(self, inside: int, processes: Processes, now: float) -> None:
        """Memory check without control groups: first a cheap upper bound, then the exact amount."""
        self._looks += 1
        pids = usage.tree(inside, processes)
        if self._looks % HIDDEN == 0:
            self._hidden = usage.hidden(pids)
        most = usage.resident(pids, processes) + self._hidden
        if most > self.plan.memory and self.weigh(processes) > self.plan.memory:
            self.end(now, self._too_much())

    def weigh(self, processes: Processes) -> int:
        """Bytes of memory of its processes: PSS and anonymous files (files that are also mapped count twice)."""
        pids = usage.tree(self.inside or self.pid, processes)
        self.weight = usage.proportional(pids) + usage.hidden(pids)
        return self.weight

    def _too_much(self) -> str:
        return f"its processes used more memory than the limit of {self.plan.memory >> 20} MiB (option memory)"
