"""Memory use of a desktop's processes, from ``/proc``: a cheap upper bound, and an exact value when it matters."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")


class Process(NamedTuple):
    """One process: its parent's process id, and its resident memory in bytes, shared memory included."""

    parent: int
    resident: int


def scan() -> dict[int, Process]:
    """Every process of this machine by its process id."""
    out = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it has ended
        out[int(name)] = Process(int(fields[1]), int(fields[21]) * PAGE)
    return out


def tree(root: int, processes: Mapping[int, Process]) -> list[int]:
    """``root`` and all its descendants; empty if it has ended."""
    children: dict[int, list[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.parent, []).append(pid)
    out, queue = [], [root] if root in processes else []
    while queue:
        pid = queue.pop()
        out.append(pid)
        queue += children.get(pid, ())
    return out


def resident(pids: Iterable[int], processes: Mapping[int, Process]) -> int:
    """Upper bound of the processes' memory in bytes: shared memory counts for each of them."""
    return sum(processes[pid].resident for pid in pids)


def proportional(pids: Iterable[int]) -> int:
    """Bytes that the processes use (PSS): shared memory is divided among its users. About 1 ms per process.

    Shared memory counts in full for a process that denies tracing, unless this process is root's.
    """
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
                total += next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Pss:")), 0)
        except PermissionError:
            total += _resident(pid)
        except OSError:
            continue  # it has ended, or is about to
    return total


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError):
        return 0  # it has ended


def hidden(pids: Iterable[int]) -> int:
    """Bytes of open anonymous (memfd) and deleted files: memory that does not appear in the processes' maps."""
    seen: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                status = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if status.st_nlink == 0 and status.st_blocks:
                seen[(status.st_dev, status.st_ino)] = status.st_blocks * 512
    return sum(seen.values())


def available() -> int:
    """Bytes of memory available on this machine without swapping."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def started(pid: int) -> int:
    """Start time of a process in clock ticks since boot; 0 if there is none. Unique together with the pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0
