"""A program in a local desktop cannot affect this machine, and a malicious guest cannot harm its client."""

from __future__ import annotations

import http.client
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.keeper import cgroups, usage
from osworld_gym.errors import DesktopError, FailureReason

pytestmark = pytest.mark.desktop


@pytest.fixture(scope="module")
def desktop() -> Iterator[LocalDesktop]:
    with LocalDesktop(template=None) as made:
        made.reset(0)
        yield made


@pytest.fixture
def doomed() -> Iterator[LocalDesktop]:
    """A desktop with tight limits, for tests that exceed them."""
    with LocalDesktop(template=None, memory=400, disk=32, processes=256) as made:
        made.reset(0)
        yield made


def python(desktop: LocalDesktop, code: str, timeout: float = 60.0) -> str:
    """Runs a program inside; returns its output."""
    desktop.write_file("/tmp/attempt.py", code.encode())
    got = desktop.run(["python3", "/tmp/attempt.py"], timeout=timeout)
    return got.output + got.error


def soon(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


# --- files -----------------------------------------------------------------------------------------------------------


def test_files_of_this_machine_are_not_there(desktop: LocalDesktop) -> None:
    marker = Path(f"/tmp/osworld-gym-safety-{os.getpid()}")
    marker.write_text("secret of this machine")
    try:
        home = Path.home()
        for path in ("/etc/shadow", "/etc/hostname", "/etc/ssh", f"{home}/.ssh", f"{home}/.bashrc", str(marker)):
            assert desktop.run(["cat", path]).returncode != 0, path
            with pytest.raises((FileNotFoundError, OSError)):
                desktop.read_file(path)
        found = desktop.run(["grep", "-rls", "secret of this machine", "/tmp", "/home", "/run", "/var", "/mnt"])
        assert str(marker) not in found.output
    finally:
        marker.unlink()


@pytest.mark.parametrize(
    "path", ["../../../../../../etc/shadow", "/tmp/../../../etc/shadow", "/proc/1/root/etc/shadow"]
)
def test_paths_that_climb_stay_inside(desktop: LocalDesktop, path: str) -> None:
    with pytest.raises((FileNotFoundError, OSError)):
        desktop.read_file(path)


def test_uploads_that_climb_stay_inside(desktop: LocalDesktop) -> None:
    name = f"osworld-gym-safety-{os.getpid()}-upload"
    for path in (f"/tmp/../../../../../../tmp/{name}", f"/proc/1/root/tmp/{name}", f"/home/user/../../tmp/{name}"):
        desktop.write_file(path, b"from inside")
        assert desktop.read_file(f"/tmp/{name}") == b"from inside"
        assert not Path("/tmp", name).exists()


def test_links_lead_nowhere_outside(desktop: LocalDesktop) -> None:
    target = Path(f"/tmp/osworld-gym-safety-{os.getpid()}-link")
    target.write_text("untouched")
    try:
        desktop.run(f"ln -sf {target} /tmp/link; ln -sfn / /tmp/root; ln -sf /etc/shadow /tmp/shadow", shell=True)
        for path in ("/tmp/link", "/tmp/shadow", "/tmp/root/etc/shadow"):
            with pytest.raises((FileNotFoundError, OSError)):
                desktop.read_file(path)
        desktop.write_file("/tmp/link", b"from inside")
        assert target.read_text() == "untouched"
    finally:
        target.unlink()


def test_what_is_shared_is_read_only(desktop: LocalDesktop) -> None:
    for path in ("/usr/x", "/etc/x", "/opt/osworld_guest/x", "/x", "/dev/x", f"{sys.prefix}/x", "/proc/sys/kernel/x"):
        assert desktop.run(["touch", path]).returncode != 0, path
    for program in ("mount -t tmpfs tmpfs /mnt", "mount -o remount,rw /usr", "chroot / true", "mknod /tmp/d b 254 0"):
        assert desktop.run(program, shell=True).returncode != 0, program


# --- processes -------------------------------------------------------------------------------------------------------


def test_processes_of_this_machine_are_not_seen(desktop: LocalDesktop) -> None:
    seen = desktop.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; ls /proc | grep -c '^[0-9]'", shell=True).output
    assert "pytest" not in seen
    assert int(seen.splitlines()[-1]) < 40


def test_processes_of_this_machine_cannot_be_killed(desktop: LocalDesktop) -> None:
    with subprocess.Popen(["sleep", "60"]) as victim:
        try:
            code = f"""
import os, signal
for pid in {[victim.pid, os.getpid(), os.getppid()]}:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError as error:
        print(type(error).__name__)
"""
            assert python(desktop, code).split() == ["ProcessLookupError"] * 3
            assert victim.poll() is None
        finally:
            victim.kill()


def test_it_is_nobody_on_this_machine(desktop: LocalDesktop) -> None:
    """Its processes run as an unprivileged user: never root, and, if root started it, no user of this machine."""
    assert desktop._guest_process is not None
    assert desktop._guest_process.inside is not None
    process = psutil.Process(desktop._guest_process.inside)
    for each in [process, *process.children(recursive=True)]:
        assert each.uids().real != 0
        if os.getuid() == 0:
            assert each.uids().real == process.uids().real > 65_534 or each.uids().real == 65_534
            assert each.uids().real != os.getuid()
    status = desktop.run(["cat", "/proc/self/status"]).output
    assert "CapEff:\t0000000000000000" in status
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


def test_two_desktops_do_not_meet() -> None:
    with LocalDesktop(template=None) as first, LocalDesktop(template=None) as second:
        first.reset(0)
        second.reset(0)
        first.run("setsid -f sleep 4711", shell=True)
        assert "4711" not in second.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", shell=True).output
        inside = [d._guest_process.inside for d in (first, second) if d._guest_process is not None]
        uids = [psutil.Process(pid).uids().real for pid in inside if pid is not None]
        assert len(uids) == 2
        assert (uids[0] != uids[1]) == (os.getuid() == 0)


# --- network ---------------------------------------------------------------------------------------------------------


def test_servers_of_this_machine_are_not_reached(desktop: LocalDesktop) -> None:
    path = f"/tmp/osworld-gym-safety-{os.getpid()}.sock"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        unix.bind(path)
        unix.listen()
        abstract.bind(f"\0osworld-gym-{os.getpid()}")
        abstract.listen()
        code = f"""
import socket
for family, address in (
    (socket.AF_INET, ("127.0.0.1", {tcp.getsockname()[1]})),
    (socket.AF_INET, ("10.0.2.2", 80)),
    (socket.AF_INET, ("1.1.1.1", 53)),
    (socket.AF_UNIX, {path!r}),
    (socket.AF_UNIX, "\\0osworld-gym-{os.getpid()}"),
):
    with socket.socket(family) as probe:
        probe.settimeout(3)
        try:
            probe.connect(address)
            print("reached", address)
        except OSError as error:
            print(type(error).__name__)
"""
        said = python(desktop, code)
    Path(path).unlink()
    assert "reached" not in said
    assert len(said.split()) == 5
    interfaces = desktop.run(["cat", "/proc/net/dev"]).output.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]


def test_ports_inside_are_forwarded_and_no_others(desktop: LocalDesktop) -> None:
    assert desktop.forwarded(22) is None
    for port in (9222, 8080):
        where = desktop.forwarded(port)
        assert where is not None
        assert where[0] == "127.0.0.1"
        desktop.write_file("/tmp/www/page.txt", f"page {port}".encode() * 10_000)
        serve = f"cd /tmp/www && exec setsid -f python3 -m http.server {port} --bind 127.0.0.1"
        desktop.run(serve, shell=True)
        assert soon(lambda where=where, port=port: fetched(where, "/page.txt") == f"page {port}".encode() * 10_000)


def fetched(where: tuple[str, int], path: str) -> bytes:
    connection = http.client.HTTPConnection(*where, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


def test_the_guest_serves_itself_at_5000_inside(desktop: LocalDesktop) -> None:
    code = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:5000/platform').read().decode())"
    assert python(desktop, code).split() == ["Linux"]


class Proxy(http.server.BaseHTTPRequestHandler):
    """An HTTP proxy that replies itself instead of forwarding."""

    def do_GET(self) -> None:
        body = f"through the proxy: {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def test_a_proxy_is_the_only_way_out() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with LocalDesktop(template=None, proxy=f"127.0.0.1:{server.server_port}") as desktop:
            for seed in range(2):
                desktop.reset(seed)
                code = (
                    "import urllib.request as r; print(r.urlopen('http://example.org/x', timeout=10).read().decode())"
                )
                assert "through the proxy: http://example.org/x" in python(desktop, code)
                direct = f"import socket; socket.create_connection(('127.0.0.1', {server.server_port}), 3)"
                assert "ConnectionRefusedError" in python(desktop, direct)
        server.shutdown()


# --- resource limits --------------------------------------------------------------------------------------------------


def test_a_full_disk_is_the_desktops_own(doomed: LocalDesktop) -> None:
    before = psutil.disk_usage("/").free
    said = doomed.run(
        "for d in /tmp /home/user /dev/shm /run/user/1000 /run/osworld; do"
        " dd if=/dev/zero of=$d/fill bs=1M count=100 2>&1 | tail -1; done; df -m --output=used /tmp ~ | tail -2",
        shell=True,
        timeout=60,
    )
    assert all(int(used) <= 33 for used in said.output.split()[-2:])
    assert abs(psutil.disk_usage("/").free - before) < 100 << 20  # other processes write to this disk too
    doomed.reset(1)
    assert doomed.run(["ls", "/tmp/fill"]).returncode != 0


def test_a_large_file_is_refused(doomed: LocalDesktop) -> None:
    assert "OSError" in python(
        doomed, "import os; f = open('/tmp/x', 'wb'); os.posix_fallocate(f.fileno(), 0, 1 << 33)"
    )


def test_a_fork_bomb_ends_with_its_desktop(doomed: LocalDesktop) -> None:
    assert doomed._guest_process is not None
    inside = doomed._guest_process.inside
    assert inside is not None
    code = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.1)
"""
    doomed.write_file("/tmp/bomb.py", code.encode())
    doomed.run("setsid -f python3 /tmp/bomb.py", shell=True)

    def grown() -> bool:
        processes = usage.scan()
        return inside not in processes or len(usage.tree(inside, processes)) > 100

    assert soon(grown)
    time.sleep(1.0)  # it keeps running for a while
    assert len(usage.tree(inside, usage.scan())) <= 256
    start = time.monotonic()
    doomed.reset(1)
    assert time.monotonic() - start < 30
    assert usage.tree(inside, usage.scan()) == []
    doomed.screenshot()


HOGS = {
    "maps": "held = [bytearray(b'x' * (1 << 20)) for _ in range(3000)]",
    "hides": "held = [os.memfd_create('x') for _ in range(3000)]; [os.write(f, bytes(1 << 20)) for f in held]",
}


@pytest.mark.parametrize(("groups", "hog"), [(True, "maps"), (False, "maps"), (True, "hides"), (False, "hides")])
def test_a_memory_hog_is_ended_and_the_reason_is_reported(
    groups: bool, hog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With control groups, if this user may create them, and without."""
    program = f"import os, time; {HOGS[hog]}; time.sleep(60)"
    if not groups:
        monkeypatch.setenv("OSWORLD_GYM_CGROUP", "/nowhere")  # a folder in which no group can be created
    script = f"""
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.errors import DesktopError
import time
with LocalDesktop(template=None, memory=400) as desktop:
    desktop.reset(0)
    desktop.write_file("/tmp/hog.py", {program.encode()!r})
    desktop.run("setsid -f python3 /tmp/hog.py", shell=True)
    until = time.monotonic() + 60
    try:
        while time.monotonic() < until:
            desktop.screenshot()
            time.sleep(0.1)
    except DesktopError as error:
        print(error)
    desktop.reset(1)
    print(len(desktop.screenshot().png) > 1000)
"""
    got = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, check=False)
    assert got.stdout.splitlines() == [
        "died: its processes used more memory than the limit of 400 MiB (option memory)",
        "True",
    ], got.stderr


def test_control_groups_are_removed_with_their_desktop(desktop: LocalDesktop) -> None:
    """A desktop is in control groups exactly if this user can create them, and they are removed with it."""
    parents = cgroups.find()
    with LocalDesktop(template=None) as other:
        other.reset(0)
        assert other._guest_process is not None
        inside = other._guest_process.inside
        groups = Path(f"/proc/{inside}/cgroup").read_text()
        assert ("osworld-gym-" in groups) == bool(parents)
        made = [path for parent in parents.values() for path in parent.glob("osworld-gym-*")]
        assert len(made) >= len(parents)
    left = [path for path in made if path.exists()]
    own = Path(f"/proc/{desktop._guest_process.inside}/cgroup").read_text() if desktop._guest_process else ""
    assert all(path.name in own or path.parent.name in own for path in left if f"-{inside}" in path.name)


# --- a malicious guest ------------------------------------------------------------------------------------------------


class Liar:
    """Listens and handles every connection with ``say``."""

    def __init__(self, say: Callable[[socket.socket], None]) -> None:
        self._say = say
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(1 << 16)
                self._say(connection)
            except OSError:
                return

    def close(self) -> None:
        self._listener.close()


def never(connection: socket.socket) -> None:
    connection.recv(1)


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


def drip_head(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"H")
        time.sleep(0.05)


def endless(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    block = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    while True:
        connection.sendall(block)


def huge(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n")
    block = b"x" * (1 << 20)
    while True:
        connection.sendall(block)


def garbage(connection: socket.socket) -> None:
    connection.sendall(os.urandom(4096))


@pytest.mark.parametrize("say", [never, drip, drip_head, endless, huge, garbage])
def test_the_client_is_bounded_in_time_and_memory(say: Callable[[socket.socket], None]) -> None:
    liar = Liar(say)
    client = GuestClient("127.0.0.1", liar.port)
    before, start = psutil.Process().memory_info().rss, time.monotonic()
    with pytest.raises(DesktopError) as caught:
        client.get("/screenshot", timeout=2.0)
    assert caught.value.reason in (FailureReason.hung, FailureReason.died)
    assert time.monotonic() - start < 15
    assert psutil.Process().memory_info().rss - before < 1 << 30
    client.close()
    liar.close()
