"""The keeper's main loop: requests from its owner, events of its desktops, a memory check twice a second.

The owner's socket carries plans with descriptors, one message per desktop. Each desktop has a separate socket, the
*link*, on which the keeper reports ``started`` and ``ended``; when the owner closes it, the keeper ends the desktop.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from osworld_gym.desktops.local.keeper import cgroups, usage
from osworld_gym.desktops.local.keeper.launch import Plan, launch, why_no_overlay
from osworld_gym.desktops.local.keeper.records import Records, reap
from osworld_gym.desktops.local.keeper.supervised_desktop import SupervisedDesktop
from osworld_gym.guest.process.processes import become_subreaper

TICK = 0.5  # seconds between two checks
MESSAGE = 1 << 17  # largest message in bytes
LOW = 1 << 28  # bytes; below the larger of this and 2 % of the memory available, the largest desktop is ended
#: a range of user ids that systemd's list leaves free, up to 2^31
FIRST, LAST = 1_879_048_192, 2_147_483_647
EACH = 64  # number of user ids per keeper
NOBODY = 65_534
_CLOSED_GROUPS = 40  # attempts to remove a control group that the kernel keeps for a while


def main(descriptor: int) -> int:
    """Runs the keeper of the parent process, connected by the socket ``descriptor``, until the parent has ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C also reaches the keeper, but is meant for the owner
    become_subreaper()
    owner = socket.socket(fileno=descriptor)
    keeper = Keeper(owner)
    owner.send(b"{}")
    keeper.run()
    return 0


class Keeper:
    """All desktops of one owner."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner, self._owner_pid = owner, os.getppid()
        for line in reap(self._owner_pid):
            print(f"osworld-gym: removed {line}", file=sys.stderr, flush=True)
        self._records = Records(self._owner_pid)
        self._parents = cgroups.find()
        self._desktops: dict[int, SupervisedDesktop] = {}
        self._closed_groups: list[tuple[cgroups.Group, int]] = []
        self._count = 0
        self._low = max(LOW, os.sysconf("SC_PHYS_PAGES") * usage.PAGE // 50)
        self._selector = selectors.DefaultSelector()
        self._selector.register(owner, selectors.EVENT_READ, self._on_owner)
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._woken = woken
        self._selector.register(woken, selectors.EVENT_READ, self._on_child)

    def run(self) -> None:
        """Runs until the owner and every desktop have ended."""
        polled = 0.0
        while True:
            for key, _ in self._selector.select(TICK):
                key.data()
            now = time.monotonic()
            if now - polled >= TICK:
                polled = now
                self._look(now)
            gone = self._owner.fileno() < 0 or os.getppid() != self._owner_pid
            if gone and not self._desktops:
                break
            if gone:
                for kept in self._desktops.values():
                    kept.end(now)
        for group, _ in self._closed_groups:
            group.remove()
        self._records.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _on_owner(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._owner, MESSAGE, 64)
        except ConnectionResetError:
            data, descriptors = b"", []
        for number in descriptors:
            os.set_inheritable(number, False)
        if not data:
            self._selector.unregister(self._owner)
            self._owner.close()
            return
        order = json.loads(data)
        link = socket.socket(fileno=descriptors[0])
        try:
            if "ping" in order:
                link.send(b'{"pong": true}')
                link.close()
            elif "try_overlay" in order:
                user = desktop_user(0)
                why = why_no_overlay(Path(order["try_overlay"]), self._records.stage, user)
                link.send(json.dumps({"why": why}).encode())
                link.close()
            else:
                self._start(Plan(**order), link, descriptors[1:])
        finally:
            for number in descriptors[1:]:
                os.close(number)

    def _start(self, plan: Plan, link: socket.socket, descriptors: list[int]) -> None:
        self._count += 1
        number = self._count
        taken = {kept.slot for kept in self._desktops.values()}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        user = desktop_user(slot) if plan.isolated else -1
        group = cgroups.make(self._parents, f"osworld-gym-{os.getpid()}-{number}", plan.memory, plan.processes)
        record: dict[str, Any] = {"marker": plan.marker, "groups": [str(g) for g in group.folders.values()]}
        self._records.write(number, record | {"pids": []})
        if plan.folder:
            os.mkdir(plan.folder, 0o700)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            launch(plan, descriptors, write, self._records.stage, user, list(group.folders.values()))
        os.close(write)
        kept = SupervisedDesktop(number, slot, plan, link, pid, read, group, record)
        self._desktops[number] = kept
        self._selector.register(link, selectors.EVENT_READ, lambda: self._on_link(kept))
        self._selector.register(read, selectors.EVENT_READ, lambda: self._on_info(kept))

    # --- events -----------------------------------------------------------------------------------------------------

    def _on_info(self, kept: SupervisedDesktop) -> None:
        """Bubblewrap reported the process id inside, or ended before (a bare desktop reports nothing)."""
        if kept.number not in self._desktops:
            return
        part = os.read(kept.info, 4096)
        kept.report += part
        if part and b"}" not in kept.report:
            return
        self._selector.unregister(kept.info)
        os.close(kept.info)
        kept.inside = json.loads(kept.report)["child-pid"] if kept.report else kept.pid
        pids = [(pid, usage.started(pid)) for pid in {kept.pid, kept.inside}]
        self._records.write(kept.number, kept.record | {"pids": pids})
        kept.tell({"started": kept.inside})

    def _on_link(self, kept: SupervisedDesktop) -> None:
        """The owner has closed the link, or has ended."""
        if kept.listening:
            self._selector.unregister(kept.link)
            kept.listening = False
            kept.end(time.monotonic())

    def _on_child(self) -> None:
        os.read(self._woken, 4096)
        by_pid = {kept.pid: kept for kept in self._desktops.values()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in by_pid:  # the others are orphans of a bare guest
                self._ended(by_pid[pid], os.waitstatus_to_exitcode(status))

    def _ended(self, kept: SupervisedDesktop, status: int) -> None:
        del self._desktops[kept.number]
        if kept.inside is None:
            self._selector.unregister(kept.info)
            os.close(kept.info)
        if kept.listening:
            self._selector.unregister(kept.link)
            kept.listening = False
        kept.finish()
        if not kept.group.remove():
            self._closed_groups.append((kept.group, _CLOSED_GROUPS))
        self._records.remove(kept.number, kept.plan.folder)
        kept.tell({"ended": status, "why": kept.why})
        kept.link.close()

    # --- the memory check --------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        self._closed_groups = [(g, tries - 1) for g, tries in self._closed_groups if tries and not g.remove()]
        if not self._desktops:
            return
        free = usage.available()
        watched = free < self._low or not all(kept.group.limits_memory for kept in self._desktops.values())
        processes = usage.scan() if watched else {}  # a few milliseconds
        for kept in self._desktops.values():
            kept.poll(processes, now)
        if free < self._low:
            largest = max(self._desktops.values(), key=lambda kept: kept.weigh(processes))
            why = f"this machine had {free >> 20} MiB of memory left, and this desktop held {largest.weight >> 20} MiB"
            largest.end(now, why)


def desktop_user(slot: int, uid: int | None = None, keeper: int | None = None, uid_map: str | None = None) -> int:
    """User (and group) id of the keeper's ``slot``-th desktop; -1: the current user. Other arguments are for tests.

    A desktop that root starts gets a user who owns nothing on this machine, a different one per desktop.
    Process ids are below 2^22, so no two keepers of one machine share a user id.
    """
    if (os.getuid() if uid is None else uid) != 0:
        return -1
    wanted = FIRST + (os.getpid() if keeper is None else keeper) * EACH % (LAST - FIRST) + slot % EACH
    text = Path("/proc/self/uid_map").read_text() if uid_map is None else uid_map
    spans = [(int(inside), int(count)) for inside, _, count in map(str.split, text.splitlines())]
    for user in (wanted, NOBODY):
        if any(inside <= user < inside + count for inside, count in spans):
            return user
    return -1  # this root is an ordinary user in its own user namespace
