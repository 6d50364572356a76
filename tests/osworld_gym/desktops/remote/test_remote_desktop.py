"""The remote provider: leases across processes, verified resets, kinds of servers. In-memory servers, real HTTP."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from polling import until
from remote_servers import MemoryServer

from osworld_gym import cli
from osworld_gym.desktops.guest_server.desktop import GuestDesktop
from osworld_gym.desktops.pool import WarmPool
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.desktops.remote import lease as remote_lease
from osworld_gym.desktops.remote.desktop import URLS, RemoteDesktop, Server, describe
from osworld_gym.desktops.remote.lease import Lease, acquire
from osworld_gym.desktops.remote.reset_hook import MARK, Hook
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.conditions import popups, windows
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

Start = Callable[..., MemoryServer]
SIZE = {"width": 320, "height": 240}

CONTAINS = {
    "func": "file_contains",
    "result": {"type": "vm_file", "path": "/a", "dest": "a"},
    "expected": {"type": "rule", "rules": {"expected": ["1"]}},
}
HOLDER = """
import sys, pathlib
from osworld_gym.desktops.remote.lease import acquire
lease = acquire([sys.argv[1]], 5.0, pathlib.Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(remote_lease, "FOLDER", tmp_path / "leases")
    servers = []

    def started(ours: bool = True, **options: Any) -> MemoryServer:
        servers.append(MemoryServer(ours, **options))
        return servers[-1]

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def _hook(server: MemoryServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/hook"


# --- leases ------------------------------------------------------------


def test_two_desktops_never_share_a_server(start: Start) -> None:
    servers = [start(), start()]
    urls = [server.url for server in servers]
    options: dict[str, Any] = {"urls": urls, "allow_dirty": True, "wait": 0.3} | SIZE
    with RemoteDesktop(**options) as first, RemoteDesktop(**options) as second, RemoteDesktop(**options) as third:
        first.reset(0)
        second.reset(0)
        assert first.server != second.server
        with pytest.raises(DesktopError, match=f"by process {os.getpid()}") as caught:
            third.reset(0)
        assert caught.value.reason is FailureReason.never_ready
        first.close()
        third.reset(0)
        assert third.server == (urls[0], "")


def test_a_dead_server_is_not_leased_again_while_another_is_free(start: Start) -> None:
    """It came first in the list, so every new desktop waited for it and failed, and no other server was ever used."""
    dead, alive = start(), start()
    dead.stop()
    options: dict[str, Any] = {"urls": [dead.url, alive.url], "reset_by": _hook(alive), "ready": 0.0, "wait": 0.0}
    with RemoteDesktop(**options | SIZE) as first, RemoteDesktop(**options | SIZE) as second:
        with pytest.raises(DesktopError, match="did not answer"):
            first.reset(0)
        assert first.server is None
        first.reset(1)
        assert first.server == (alive.url, "")
        with pytest.raises(DesktopError, match="did not answer"):  # the only one that is free
            second.reset(2)
        first.close()
        second.reset(3)
        assert second.server == (alive.url, "")


def test_a_lease_holds_over_processes_and_ends_with_its_holder(tmp_path: Path) -> None:
    folder, url = tmp_path / "leases", "http://a:5000"
    command = [sys.executable, "-c", HOLDER, url, str(folder)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(DesktopError, match=f"{url} by process {holder.pid}"):
        acquire([url], 0.1, folder)
    other = acquire([url, "http://b:5000"], 0.1, folder)
    assert other.url == "http://b:5000"
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    lease = acquire([url], 0.1, folder)
    lease.release()
    lease.release()
    other.release()


def test_a_folder_of_locks_that_cannot_be_used_is_never_ready(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    folder.write_text("")
    with pytest.raises(DesktopError, match=f"{folder}.*every user") as caught:
        acquire(["http://a:5000"], 0.0, folder)
    assert caught.value.reason is FailureReason.never_ready


def test_a_lock_that_cannot_be_written_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(DesktopError, match="No space left"):
            acquire(["http://a:5000"], 0.0, tmp_path)
    acquire(["http://a:5000"], 0.0, tmp_path).release()


def test_the_lease_of_a_reset_that_was_given_up_ends_with_the_reset(start: Start) -> None:
    """The thread that resets goes on for a while: nobody else may have the server meanwhile, and it must not use it."""
    server = start()
    server.hold.clear()
    desktop = RemoteDesktop([server.url], reset_by=_hook(server), **SIZE)
    caught: list[DesktopError] = []

    def reset() -> None:
        with pytest.raises(DesktopError) as error:
            desktop.reset(0)
        caught.append(error.value)

    thread = threading.Thread(target=reset)
    thread.start()
    until(lambda: "/hook" in server.asked, "the hook is called")
    desktop.close()
    with pytest.raises(DesktopError, match=f"by process {os.getpid()}"):
        acquire([server.url], 0.0)
    server.hold.set()
    thread.join(30)
    assert [error.reason for error in caught] == [FailureReason.died]
    assert "closed while it was reset" in caught[0].message
    assert server.asked == ["/setup/upload", "/hook"]
    acquire([server.url], 0.0).release()
    desktop.reset(1)  # it can be used again
    desktop.close()
    acquire([server.url], 0.0).release()


def test_the_thread_of_a_hook_that_answers_a_byte_at_a_time_ends_soon() -> None:
    """Each byte comes in time, the whole answer would take a quarter of an hour."""
    left = threading.Event()

    def trickle(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n")
            with suppress(OSError):
                for _ in range(9000):
                    connection.sendall(b"x")
                    if left.wait(0.1):
                        break

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=trickle, args=(server,))
        answering.start()
        try:
            with pytest.raises(DesktopError, match=r"timed out: no whole answer in 0.5 s"):
                Hook(f"http://127.0.0.1:{server.getsockname()[1]}/", 0.5).call("http://a:5000", 1)
            until(lambda: "reset URL" not in {thread.name for thread in threading.enumerate()}, "it goes on", 15.0)
        finally:
            left.set()
            answering.join()


# --- failures of what is in between -------------------------------------


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("status", [401, 429, 502, 503, 507])
def test_what_a_gateway_answers_is_no_missing_file_and_no_failed_command(start: Start, status: int, ours: bool) -> None:
    """Either would be a score of 0, as if the policy had caused it."""
    server = start(ours)
    with RemoteDesktop([server.url], allow_dirty=True, **SIZE) as desktop:
        desktop.reset(0)
        server.gateway = status
        task = Task("t", "i", evaluator=CONTAINS)
        for call in (
            lambda: desktop.read_file("/a"),
            lambda: desktop.run("true"),
            lambda: verify(task, desktop, stop=StopReason.finished),
        ):
            with pytest.raises(DesktopError, match=rf"status {status}, no healthy upstream") as caught:
                call()
            assert caught.value.reason is FailureReason.died
        server.gateway = None
        with pytest.raises(FileNotFoundError):
            desktop.read_file("/a")
        assert verify(task, desktop, stop=StopReason.finished).score == 0.0


def test_lock_files_are_for_every_user_and_the_umask_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is that of the whole process: other threads create files meanwhile."""
    folder, before = tmp_path / "leases", os.umask(0o077)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda _: pytest.fail("the umask is changed"))
            acquire(["http://a:5000"], 0.0, folder).release()
    finally:
        os.umask(before)
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE(file.stat().st_mode) == 0o666
    folder.chmod(0o1755)
    acquire(["http://a:5000", "http://b:5000"], 0.0, folder).release()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1755  # it is as its creator made it, or who changed it


def test_desktops_that_create_the_folder_at_once_get_different_servers(tmp_path: Path) -> None:
    urls = [f"http://a{number}:5000" for number in range(6)]
    for attempt in range(5):
        folder, begin = tmp_path / str(attempt), threading.Barrier(len(urls), timeout=60)

        def lease(folder: Path = folder, begin: threading.Barrier = begin) -> Lease:
            begin.wait()
            return acquire(urls, 60.0, folder)

        with ThreadPoolExecutor(len(urls)) as threads:
            leases = [future.result(60) for future in [threads.submit(lease) for _ in urls]]
        assert sorted(each.url for each in leases) == urls
        assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}
        assert len(list(folder.iterdir())) == len(urls)
        for each in leases:
            each.release()
    assert len(list(tmp_path.iterdir())) == 5


# --- resets ------------------------------------------------------------


def test_without_a_way_to_reset_it_is_refused(start: Start) -> None:
    with pytest.raises(ValueError, match="no desktop would be pristine"):
        RemoteDesktop([start().url])
    with pytest.raises(ValueError, match="got both"):
        RemoteDesktop([start().url], reset_by="true", allow_dirty=True)


def test_a_url_hook_gets_the_server_and_the_seed(start: Start) -> None:
    server = start()
    with RemoteDesktop([server.url], reset_by=_hook(server), **SIZE) as desktop:
        desktop.reset(5)
        desktop.write_file("/tmp/x", b"1")
        desktop.reset(6)
        with pytest.raises(FileNotFoundError):
            desktop.read_file("/tmp/x")
    assert server.posted == [{"server": server.url, "seed": 5}, {"server": server.url, "seed": 6}]


def test_a_hook_that_did_not_reset_is_found_out(start: Start) -> None:
    server = start()
    with RemoteDesktop([server.url], reset_by=_hook(server), **SIZE) as desktop:
        desktop.reset(0)
        assert MARK in server.files
        server.hook_renews = False
        with pytest.raises(DesktopError, match="did not make a new desktop") as caught:
            desktop.reset(1)
        assert caught.value.reason is FailureReason.setup_failed
        with pytest.raises(DesktopError):
            desktop.screenshot()
        server.hook_renews = True
        desktop.reset(2)
        assert desktop.screenshot().size == (320, 240)


@pytest.mark.parametrize("ours", [True, False])
def test_a_policy_that_removes_the_marker_hides_no_hook_that_did_not_reset(start: Start, ours: bool) -> None:
    """The desktop with what the policy left would have been the start of the next episode."""
    server = start(ours)
    with RemoteDesktop([server.url], reset_by=_hook(server), **SIZE) as desktop:
        desktop.reset(0)
        server.hook_renews = False
        for seed in (1, 2):
            server.files.pop(MARK, None)
            with pytest.raises(DesktopError, match="did not make a new desktop"):
                desktop.reset(seed)
    server.files.pop(MARK)
    with RemoteDesktop([server.url], reset_by=_hook(server), **SIZE) as later:
        with pytest.raises(DesktopError, match="did not make a new desktop"):
            later.reset(3)
        server.hook_renews = True
        later.reset(4)


def test_a_marker_that_cannot_be_read_is_no_new_desktop(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the policy made a folder in its place."""
    server = start()

    def broken(*_: object) -> bytes:
        raise IsADirectoryError(MARK)

    monkeypatch.setattr(GuestDesktop, "read_file", broken)
    with RemoteDesktop([server.url], reset_by=_hook(server), **SIZE) as desktop:
        with pytest.raises(DesktopError, match="whether it made a new desktop") as caught:
            desktop.reset(0)
        assert caught.value.reason is FailureReason.setup_failed


def test_a_desktop_that_an_earlier_process_left_is_not_pristine(start: Start) -> None:
    server = start()
    server.files[MARK] = b"used\n"
    server.hook_renews = False
    with RemoteDesktop([server.url], reset_by=_hook(server), **SIZE) as desktop, pytest.raises(DesktopError):
        desktop.reset(0)


def test_a_command_hook_has_server_and_seed_in_its_environment(start: Start, tmp_path: Path) -> None:
    server = start(token="secret")
    out = tmp_path / "out"
    script = (
        f"import os; open({str(out)!r}, 'w').write(os.environ['OSWORLD_SERVER_URL'] + ' ' + os.environ['OSWORLD_SEED'])"
    )
    hook, failure = f'{sys.executable} -c "{script}"', "did not make a new desktop"
    with RemoteDesktop([server.url], reset_by=hook, **SIZE) as desktop, pytest.raises(DesktopError, match=failure):
        desktop.reset(9)
    assert out.read_text() == f"http://127.0.0.1:{server.server_port} 9"


@pytest.mark.parametrize("ours", [True, False])
def test_a_pooled_reset_finds_a_desktop_that_was_replaced_ahead(start: Start, ours: bool) -> None:
    servers = [start(ours), start(ours)]
    unused = iter(servers)

    def make() -> RemoteDesktop:
        server = next(unused)
        return RemoteDesktop([server.url], reset_by=_hook(server), client_password="s3cret", **SIZE)

    pool = WarmPool(make, ahead=1)
    desktop = pool.desktop()
    try:
        assert desktop.client_password == "s3cret"
        until(lambda: pool.ready == 1, "no desktop is ready")
        assert [len(server.posted) for server in servers] == [1, 0]
        desktop.reset(5)
        assert len(servers[0].posted) == 1  # no hook at the reset
        assert servers[0].seeds == ([5] if ours else [])
        assert desktop.screenshot().size == (320, 240)
        until(lambda: pool.ready == 1, "no second desktop is ready")
        desktop.reset(6)
        assert servers[1].seeds == ([6] if ours else [])
        assert MARK in servers[1].files
    finally:
        desktop.close()
        pool.close()


def test_a_prepared_desktop_that_no_longer_answers_is_replaced(start: Start) -> None:
    server = start()
    with RemoteDesktop([server.url], reset_by=_hook(server), **SIZE) as desktop:
        desktop.prepare()
        server.ours = False  # /seed answers 404, as after a restart with another program
        desktop.reset(3)
        assert [call["seed"] for call in server.posted] == [0, 3]
        desktop.reset(4)
        assert [call["seed"] for call in server.posted] == [0, 3, 4]


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("sh -c 'echo no such machine >&2; exit 4'", "ended with status 4; its output: no such machine"),
        ("sleep 60", "timed out"),
        ("/no/such/command", "No such file"),
        ("http://127.0.0.1:1/reset", "refused"),
    ],
)
def test_a_hook_that_fails_is_never_ready(start: Start, hook: str, said: str) -> None:
    options: dict[str, Any] = {"reset_by": hook, "reset_deadline": 0.5} | SIZE
    with RemoteDesktop([start().url], **options) as desktop, pytest.raises(DesktopError, match=said) as caught:
        desktop.reset(0)
    assert caught.value.reason is FailureReason.never_ready


def test_a_reset_url_keeps_its_password_and_query_out_of_errors(start: Start) -> None:
    server = start()
    server.hook_renews = False
    secret = _hook(server).replace("//", "//user:s3cret@")
    errors = []
    for action in (secret.replace("/hook", "/?key=s3cret"), "http://user:s3cret@127.0.0.1:9/x?key=s3cret", secret):
        with RemoteDesktop([server.url], reset_by=action, **SIZE) as desktop:
            server.files[MARK] = b"used"
            with pytest.raises(DesktopError) as caught:
                desktop.reset(0)
            assert caught.value.__cause__ is None
            errors.append(str(caught.value))
    assert "s3cret" not in " ".join(errors)
    assert "answered 404" in errors[0]
    assert "Connection refused" in errors[1]
    assert "did not make a new desktop" in errors[2]


def test_a_reset_url_whose_host_cannot_be_looked_up_is_never_ready() -> None:
    with pytest.raises(DesktopError, match=r"reset URL http://a\.\.b") as caught:
        Hook("http://a..b/reset", 5.0).call("http://x", 0)
    assert caught.value.reason is FailureReason.never_ready


def test_the_deadline_of_a_command_is_that_of_its_children(tmp_path: Path) -> None:
    """The child holds a pipe, whose other end ends with it."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    def ended() -> bool:
        try:
            return os.read(reader, 100) == b""
        except BlockingIOError:
            return False

    command = f"sleep 600 > {tmp_path}/pipe 2>/dev/null & wait"
    with pytest.raises(DesktopError, match="timed out") as caught:
        Hook(shlex.join(["sh", "-c", command]), 1.0).call("http://a:5000", 1)
    assert caught.value.reason is FailureReason.never_ready
    until(ended, "the child of the command still runs")
    os.close(reader)


def test_a_command_that_leaves_a_program_running_has_ended(tmp_path: Path) -> None:
    """The program has the command's output, too."""
    command = f"sleep 600 & echo $! > {tmp_path}/pid"
    try:
        Hook(shlex.join(["sh", "-c", command]), 30.0).call("http://a:5000", 1)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)  # which fails if it has ended


@pytest.mark.parametrize("begin", [b"Content-Length: 100\r\n\r\n", b"X: "], ids=["body", "header"])
def test_the_deadline_of_a_url_is_that_of_its_whole_answer(begin: bytes) -> None:
    """The answer comes in parts, for longer than the deadline, each of which comes at once."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\n" + begin)
                for _ in range(100):
                    connection.sendall(b".")
                    ended.wait(0.05)
                connection.sendall(b"\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(DesktopError, match=r"timed out: no whole answer in 0\.5 s") as caught:
                Hook(f"http://127.0.0.1:{server.getsockname()[1]}/reset", 0.5).call("http://a:5000", 1)
        finally:
            ended.set()
            thread.join(60)
    assert caught.value.reason is FailureReason.never_ready


def test_a_url_that_answers_an_error_is_never_ready(start: Start) -> None:
    hook = Hook(f"{start().url}/no-such-path", 30.0)
    with pytest.raises(DesktopError, match="no-such-path answered 404: ") as caught:
        hook.call("http://a:5000", 1)
    assert caught.value.reason is FailureReason.never_ready


# --- servers ------------------------------------------------------------


def test_ours_and_an_official_server_are_distinguished(start: Start) -> None:
    for ours in (True, False):
        server = start(ours)
        with RemoteDesktop([server.url], allow_dirty=True, **SIZE) as desktop:
            desktop.reset(0)
            assert desktop.screenshot().size == (320, 240)
        assert ("/observe" in server.asked) is ours
        assert describe(Server.parse(server.url))[0].split(", ")[0].endswith(": ours" if ours else ": official")


def test_an_oracle_sees_the_windows_and_menus_of_a_remote_desktop(start: Start) -> None:
    with RemoteDesktop([start().url], allow_dirty=True, **SIZE) as desktop:
        with pytest.raises(DesktopError, match="reset it first"):
            windows(desktop)
        desktop.reset(0)
        assert windows(desktop) == [{"title": "Text editor"}]
        assert popups(desktop) == [{"x": 1}]


def test_a_wrong_token_is_reported_at_once_and_never_printed(start: Start) -> None:
    server = start(token="right")
    url = server.url.replace("right", "wr0ng")
    with RemoteDesktop([url], allow_dirty=True, ready=60.0, **SIZE) as desktop:
        with pytest.raises(DesktopError, match="requires another token") as caught:
            desktop.reset(0)
        assert "wr0ng" not in str(caught.value)
    assert describe(Server.parse(server.url))[1]


def test_another_screen_names_the_options(start: Start) -> None:
    with (
        RemoteDesktop([start().url], allow_dirty=True) as desktop,
        pytest.raises(DesktopError, match="fix: width=320"),
    ):
        desktop.reset(0)


def test_nobody_there_is_never_ready() -> None:
    with RemoteDesktop(["http://127.0.0.1:1"], allow_dirty=True, ready=0.3) as desktop:
        with pytest.raises(DesktopError, match=r"within 0\.3 s") as caught:
            desktop.reset(0)
        assert caught.value.reason is FailureReason.never_ready


def test_a_reset_may_take_as_long_as_the_options_say() -> None:
    options: dict[str, Any] = {"urls": ["http://127.0.0.1:1"], "ready": 3.0, "reset_deadline": 20.0, "wait": 100.0}
    assert RemoteDesktop(**options, reset_by="true").reset_limit == 123.0
    assert RemoteDesktop(**options, allow_dirty=True).reset_limit == 103.0


def test_ports_and_token_are_in_the_url(start: Start) -> None:
    server = start(token="t0ken")
    with RemoteDesktop([server.url + "?chrome=19222"], allow_dirty=True, **SIZE) as desktop:
        assert desktop.server is None
        desktop.reset(0)
        assert desktop.server == (f"http://127.0.0.1:{server.server_port}", "t0ken")
        assert desktop.forwarded(9222) == ("127.0.0.1", 19222)
        assert desktop.forwarded(8080) == ("127.0.0.1", 8080)
        assert desktop.forwarded(22) is None


@pytest.mark.parametrize(
    "url",
    [
        *("https://a:5000", "a:5000", "http://", "http://a:5000/path", "http://t@a?vnc=1"),
        *("http://a:0", "http://a?chrome=0", "http://a?vlc=65536", "http://a?chrome=", "http://a?chrome"),
        *("http://a#b", "http://a..b", "http://a b"),
    ],
)
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="a server: expected http://"):
        Server.parse(url)


@pytest.mark.parametrize("token", ["user:pass", ":pass", "a#b", "a?b", "a/b", "a@b", "%40"])
def test_a_token_may_have_any_characters_but_spaces(token: str) -> None:
    """What follows such a character was cut off, or the token's beginning was the host."""
    assert Server.parse(f"http://{token}@a:1") == Server("a", 1, token, {9222: 9222, 8080: 8080})


def test_a_token_that_no_request_can_have_is_refused_and_not_printed() -> None:
    with pytest.raises(ValueError, match="expected a token of ASCII characters") as caught:
        Server.parse("http://s€cret@a:1")
    assert "cret" not in str(caught.value)


def test_an_address_of_ipv6_keeps_its_brackets() -> None:
    assert str(Server.parse("http://t@[::1]:5001")) == "http://[::1]:5001"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"urls": "http://s3cret@a"}, "urls: expected a list of URLs"),
        ({"wait": float("nan")}, "wait: expected seconds"),
        ({"ready": -1}, "ready: expected seconds"),
        ({"reset_deadline": "60"}, "reset_deadline: expected seconds"),
        ({"width": "1920"}, "width and height: expected integers"),
        ({"allow_dirty": False, "reset_by": ""}, "reset_by: expected a command or URL"),
        ({"allow_dirty": False, "reset_by": "./revert 'one"}, "No closing quotation"),
        ({"allow_dirty": False, "reset_by": "http://"}, "reset_by: expected a command or URL"),
        ({"allow_dirty": False, "reset_by": ["./revert"]}, "reset_by: expected a command or URL"),
    ],
)
def test_a_wrong_option_is_refused_before_the_first_reset(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        make_desktop("remote", **{"urls": ["http://a"], "allow_dirty": True} | options)
    assert "s3cret" not in str(caught.value)


def test_no_servers_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URLS, raising=False)
    with pytest.raises(DesktopError, match=f"export {URLS}="):
        make_desktop("remote", allow_dirty=True)


def test_doctor_describes_each_server(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [start(False), start(True, token="t0ken")]
    monkeypatch.setenv(URLS, ", ".join(server.url for server in servers))
    monkeypatch.setattr("osworld_gym.commands.doctor.PROVIDERS", {"remote": ""})
    assert cli.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert ": official, 320×240" in said
    assert ": ours, 320×240" in said
    assert "t0ken" not in said
