"""No program in a local desktop reaches this machine's network, another desktop, or a descriptor of ours."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_checks import attack, check_report, check_works, host_servers, host_sockets, sockets_of

from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.keeper import usage
from osworld_gym.guest.ports import FORWARDED, SERVER

pytestmark = pytest.mark.desktop


@pytest.fixture(scope="module")
def desktop() -> Iterator[LocalDesktop]:
    with LocalDesktop(640, 480, template=None) as made:
        made.reset(0)
        yield made


def inside(desktop: LocalDesktop) -> list[int]:
    assert desktop._guest_process is not None
    assert desktop._guest_process.inside is not None
    return usage.tree(desktop._guest_process.inside, usage.scan())


def test_an_attack_gets_nothing(desktop: LocalDesktop) -> None:
    with LocalDesktop(640, 480, template=None) as other:
        other.reset(0)
        ports = [other.forwarded(port) for port in (SERVER, *FORWARDED)]
        with host_servers(*[address for address in ports if address is not None]) as host:
            report = attack(desktop, host)
            check_report(report, host, ours=2)  # the guest and the Python that forks
            assert any(process["copied"] for process in report["processes"])  # an engine may forbid copying as such
        check_works(other)
    check_works(desktop)


def test_an_attack_beside_a_proxy_gets_nothing() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as proxy,
        LocalDesktop(640, 480, template=None, proxy=f"127.0.0.1:{proxy.getsockname()[1]}") as desktop,
    ):
        desktop.reset(0)
        with host_servers() as host:
            check_report(attack(desktop, host), host, ours=2)
        check_works(desktop)
        assert held_of_this_machine(desktop) == {}


def held_of_this_machine(desktop: LocalDesktop) -> dict[int, set[str]]:
    """Process inside → its sockets that belong to this machine's network."""
    before, found = host_sockets(), {}
    for pid in inside(desktop):
        held = sockets_of(pid)
        if held is None:  # only root may list those of a process that denies tracing
            assert os.geteuid() != 0
            continue
        found[pid] = held & (before | host_sockets())
    assert found
    return {pid: held for pid, held in found.items() if held}


def test_no_socket_of_this_machine_is_inside(desktop: LocalDesktop) -> None:
    """While the server and forwarded ports are in use, by TCP too."""
    assert desktop.server is not None
    with socket.create_connection(desktop.forwarded(SERVER) or ("", 0)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        desktop.run(["python3", "-c", "print(1)"])
        assert host_sockets() & (sockets_of(os.getpid()) or set())  # the list is that of this machine's network
        assert held_of_this_machine(desktop) == {}


def test_the_guest_has_pipes_and_what_it_opened_itself(desktop: LocalDesktop) -> None:
    """Nothing that the keeper or bubblewrap had open is inherited, such as a file on this machine's disk."""
    first = inside(desktop)[0]
    links = {}
    if os.geteuid() == 0:  # nobody else may look
        links = {name: os.readlink(f"/proc/{first}/fd/{name}") for name in os.listdir(f"/proc/{first}/fd")}
    own = ("pipe:[", "socket:[", "/run/osworld/", "/dev/null", "anon_inode:")
    assert {name: link for name, link in links.items() if not link.startswith(own)} == {}
    assert all(links[name].startswith("pipe:[") for name in ("0", "1", "2") if links)


_LEAVING = """
import ctypes, errno, json, os, socket
libc, said = ctypes.CDLL(None, use_errno=True), {}
for name, call in (("add_key", (%(add_key)d, b"user", b"osworld-gym", b"x", 1, -3)), ("keyctl", (%(keyctl)d, 0, -3, 0)),
                   ("io_uring", (425, 1, ctypes.create_string_buffer(120)))):
    said[name] = 0 if libc.syscall(*call) >= 0 else errno.errorcode[ctypes.get_errno()]
for family in ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_VSOCK", "AF_ALG", "AF_QIPCRTR"):
    try:
        socket.socket(getattr(socket, family), socket.SOCK_DGRAM if family != "AF_ALG" else 5).close()
        said[family] = 0
    except OSError as error:
        said[family] = errno.errorcode[error.errno]
print(json.dumps(said))
"""


def test_calls_that_leave_the_namespaces_are_refused(desktop: LocalDesktop) -> None:
    """The keyring of this program's session is shared by all desktops; vsock reaches other machines' servers."""
    numbers = {"x86_64": {"add_key": 248, "keyctl": 250}, "aarch64": {"add_key": 217, "keyctl": 219}}
    if os.uname().machine not in numbers:
        pytest.skip("no filter on this machine")
    said = json.loads(desktop.run(["python3", "-c", _LEAVING % numbers[os.uname().machine]]).output)
    calls = dict.fromkeys(("add_key", "keyctl", "io_uring"), "ENOSYS")
    works = dict.fromkeys(("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"), 0)
    assert said == calls | works | dict.fromkeys(("AF_VSOCK", "AF_ALG", "AF_QIPCRTR"), "EAFNOSUPPORT")


def test_each_process_of_ours_denies_tracing(desktop: LocalDesktop) -> None:
    """Its files in /proc belong to root, for whoever started it."""
    desktop.run(["python3", "-c", "print(1)"])
    ours = [pid for pid in inside(desktop) if b"osworld_guest" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(ours) == 2
    owner = os.stat(f"/proc/{next(pid for pid in inside(desktop) if pid not in ours)}/environ").st_uid
    assert {os.stat(f"/proc/{pid}/environ").st_uid for pid in ours}.isdisjoint({owner})


def test_a_forked_program_may_be_traced_as_a_fresh_one(desktop: LocalDesktop) -> None:
    code = (
        "import os; print(os.stat('/proc/self/environ').st_uid == os.getuid(), open('/proc/self/environ').read()[:4])"
    )
    fast, fresh = (desktop.run([python, "-c", code]).output for python in ("python3", "/usr/bin/python3"))
    assert fast.split()[0] == fresh.split()[0] == "True"
