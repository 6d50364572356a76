"""What must hold of a desktop's sandbox, for any provider: plays the attacks of ``attacker.py``, checks the report."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osworld_gym.desktops.base import Desktop

ATTACKER = Path(__file__).with_name("attacker.py")
SECRET = "OSWORLD-GYM-HOST-SECRET"
OURS = "osworld_guest"  # in the command line of each process of ours inside
TABLES = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "unix", "netlink", "packet")


@dataclass(frozen=True)
class Host:
    """Servers of this machine that nothing inside may reach."""

    targets: list[Any]
    listen: int  #: a free port


@contextmanager
def host_servers(*others: tuple[str, int]) -> Iterator[Host]:
    """Servers on this machine's loopback, its address and an abstract name; ``others`` are further addresses."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("0.0.0.0", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        name = f"osworld-gym-host-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        for listener in (server, abstract):
            threading.Thread(target=_answer, args=(listener,), daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        yield Host([*((host, server.getsockname()[1]) for host in _addresses()), name, *others], port)


def _answer(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(SECRET.encode())


def _addresses() -> list[str]:
    """The addresses of this machine: loopback, and the one with which it would reach others."""
    out = ["127.0.0.1"]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        out.append(probe.getsockname()[0])
    return out


def attack(desktop: Desktop, host: Host) -> dict[str, Any]:
    """Runs the attacker in the desktop, beside the Python that forks for commands; returns its report."""
    assert desktop.server is not None
    assert desktop.run(["python3", "-c", "print(1)"]).output == "1\n"
    desktop.write_file("/tmp/attacker.py", ATTACKER.read_bytes())
    order = {"targets": host.targets, "listen": host.listen, "secret": desktop.server[1][::-1]}
    got = desktop.run(["python3", "/tmp/attacker.py", json.dumps(order)], timeout=120)
    assert got.returncode == 0, got.error
    return dict(json.loads(got.output))


def check_report(report: dict[str, Any], host: Host, ours: int) -> None:
    """Nothing got out or was read; ``ours`` processes of ours inside gave nothing at all."""
    assert report["reached"] == []
    assert report["files"] == []
    assert [process["words"] for process in report["processes"] if process["holds"]] == []
    own = [process for process in report["processes"] if OURS in process["words"]]
    assert len(own) == ours
    for process in own:
        assert (process["copied"], process["opened"], process["traced"]) == (0, [], False), process["words"]
    others = [process for process in report["processes"] if process not in own]
    assert any(process["opened"] and process["traced"] for process in others)  # the attacks themselves work
    assert report["listening"] > 0  # in the desktop's own network, and not here:
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", host.listen)) != 0


def check_works(desktop: Desktop) -> None:
    """The desktop goes on after the attack."""
    assert len(desktop.screenshot().png) > 1000
    assert desktop.run(["echo", "fine"]).output == "fine\n"


def host_sockets() -> set[str]:
    """The inodes of all sockets of this process's network namespace."""
    out = set()
    for table in TABLES:
        path = Path(f"/proc/net/{table}")
        lines = path.read_text().splitlines() if path.exists() else []
        column = -1 if table == "packet" else 6 if table == "unix" else 9
        out |= {line.split()[column] for line in lines[1:] if len(line.split()) > 6}
    return out


def sockets_of(pid: int) -> set[str] | None:
    """The inodes of a process's sockets; None if this user may not list them."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return None
    out = set()
    for name in names:
        with suppress(FileNotFoundError):  # closed meanwhile
            link = os.readlink(f"/proc/{pid}/fd/{name}")
            out |= {link[len("socket:[") : -1]} if link.startswith("socket:[") else set()
    return out
