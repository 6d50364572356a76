"""Nothing of a local desktop outlives its owner, in whatever order processes end; HOME from a template."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from polling import until

from osworld_gym.desktops.guest_server.http_client import GuestClient
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.guest_process import GuestProcess
from osworld_gym.desktops.local.keeper import cgroups, records, usage
from osworld_gym.desktops.local.keeper_client import keeper
from osworld_gym.desktops.pool import WarmPool
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.guest.ports import SERVER
from osworld_gym.guest.process.processes import MARKER, marked

pytestmark = pytest.mark.desktop

OWNER = """
import os, sys, time
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.keeper_client import keeper
desktop = LocalDesktop(isolated=sys.argv[1] == "isolated", template=None)
desktop.reset(0)
desktop.run("setsid -f sleep 300", shell=True)
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        time.sleep(300)
print(keeper().pid, desktop._guest_process.inside, child if "fork" in sys.argv else 0, flush=True)
time.sleep(300)
"""


def soon(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def alive(pid: int) -> bool:
    """Whether the process is running; a zombie is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@dataclass(frozen=True)
class Owner:
    """A process with one desktop: the ids of itself, its keeper, its guest and its forked child."""

    process: subprocess.Popen[str]
    keeper: int
    guest: int
    child: int
    desktop: list[int]

    @property
    def folders(self) -> list[Path]:
        return list(records.run_directory().glob(f"{self.process.pid}-*"))

    def gone(self, seconds: float = 20.0) -> bool:
        """Whether keeper and desktop have ended."""
        return soon(lambda: not any(map(alive, [*self.desktop, self.keeper])), seconds)


@pytest.fixture
def owner(request: pytest.FixtureRequest) -> Iterator[Owner]:
    arguments = request.param.split()
    with subprocess.Popen([sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            keeper_pid, guest, child = map(int, process.stdout.readline().split())
            tree = usage.tree(guest, usage.scan())
            assert len(tree) >= 5  # guest, X server, bus, window manager, sleep
            yield Owner(process, keeper_pid, guest, child, tree)
        finally:
            process.kill()


both = pytest.mark.parametrize("owner", ["isolated", "bare"], indirect=True)


@both
def test_a_killed_owner_takes_a_stopped_guest_along(owner: Owner) -> None:
    os.kill(owner.guest, signal.SIGSTOP)
    owner.process.kill()
    assert owner.gone()
    assert soon(lambda: owner.folders == [])


@pytest.mark.parametrize("owner", ["isolated fork"], indirect=True)
def test_a_forked_child_does_not_keep_the_desktop(owner: Owner) -> None:
    try:
        owner.process.kill()
        assert owner.gone()
        assert psutil.pid_exists(owner.child)
    finally:
        os.kill(owner.child, signal.SIGKILL)


@pytest.mark.parametrize("owner", ["isolated"], indirect=True)
def test_a_killed_keeper_takes_its_desktops_along(owner: Owner) -> None:
    os.kill(owner.guest, signal.SIGSTOP)
    os.kill(owner.keeper, signal.SIGKILL)
    assert owner.gone()
    assert owner.process.poll() is None


@both
def test_what_a_crash_left_is_cleaned_by_the_next_start(owner: Owner) -> None:
    """Owner and keeper killed, the guest stopped: a bare desktop remains until the next desktop is started."""
    with LocalDesktop(template=None) as another, LocalDesktop(template=None, isolated=False) as bare:
        another.reset(0)
        bare.reset(0)
        for pid in (owner.guest, owner.keeper):
            os.kill(pid, signal.SIGSTOP)
        for pid in (owner.keeper, owner.process.pid):
            os.kill(pid, signal.SIGKILL)
        owner.process.wait()
        assert owner.folders != []
        start = "from osworld_gym.desktops.local.keeper_client import keeper; keeper()"
        started = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60, check=True)
        # silent if a desktop that is started elsewhere on this machine was faster
        assert not started.stderr or f"removed desktop 1 of process {owner.process.pid}" in started.stderr
        assert owner.gone()
        assert owner.folders == []
        another.screenshot()
        bare.screenshot()


def test_a_sandbox_is_started_with_its_marker() -> None:
    with LocalDesktop(template=None) as desktop:
        desktop.reset(0)
        [record] = records.owner_folder(os.getpid()).glob("*.json")
        found = marked(json.loads(record.read_text())["marker"])
        assert "bwrap" in {psutil.Process(pid).name() for pid in found}


def test_a_sandbox_whose_maker_was_killed_too_early_is_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits forever for its user mapping, and its record has no process id yet: its marker identifies it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = records.run_directory() / "4194305-1"
    left.mkdir()
    (left / "1.json").write_text(json.dumps({"pids": [], "marker": "early", "groups": []}))
    waits, told = os.pipe()
    command = ["bwrap", "--unshare-user", "--unshare-pid", "--bind", "/", "/", "--info-fd", "2"]
    command += ["--userns-block-fd", str(waits), "true"]
    with subprocess.Popen(
        command, env={**os.environ, MARKER: "early"}, stderr=subprocess.PIPE, pass_fds=[waits]
    ) as maker:
        assert maker.stderr is not None
        assert b"child-pid" in maker.stderr.read(20)
        maker.kill()
    os.close(waits)
    os.close(told)
    assert len(marked("early")) == 1
    assert records.reap(os.getpid()) == ["desktop 1 of process 4194305"]
    assert marked("early") == []


def test_a_desktop_outlives_the_thread_that_started_it() -> None:
    desktop = LocalDesktop(template=None)
    thread = threading.Thread(target=desktop.reset, args=(0,))
    thread.start()
    thread.join(60)
    time.sleep(0.5)  # a parent-death signal of that thread would be sent now
    desktop.screenshot()
    desktop.close()


def own() -> tuple[set[int], set[str]]:
    """This process's desktops: descendants of its keeper, names in its folder."""
    below = set(usage.tree(keeper().pid, usage.scan()))
    return below, {path.name for path in records.owner_folder(os.getpid()).iterdir()}


@pytest.mark.parametrize("isolated", [True, False])
def test_a_failed_begin_leaves_nothing(isolated: bool) -> None:
    keeper()
    before = own()
    with LocalDesktop(apps=("no_such_program",), isolated=isolated) as desktop:
        for _ in range(2):
            with pytest.raises(DesktopError) as caught:
                desktop.reset(0)
            assert caught.value.reason is FailureReason.setup_failed
            desktop.close()
            assert soon(lambda: own() == before)


def test_a_sandbox_that_cannot_start_reports_the_reason_at_once(tmp_path: Path) -> None:
    template = tmp_path / "home"
    template.mkdir()
    desktop = LocalDesktop(template=template)
    before = own()
    template.rmdir()
    start = time.monotonic()
    with pytest.raises(DesktopError) as caught:
        desktop.reset(0)
    assert caught.value.reason is FailureReason.never_ready
    assert "home" in str(caught.value)
    assert time.monotonic() - start < 20
    assert soon(lambda: own() == before)


def test_an_exited_keeper_is_reported_as_died_and_the_next_reset_starts_a_new_one() -> None:
    with LocalDesktop(template=None) as desktop, LocalDesktop(template=None) as other:
        desktop.reset(0)
        other.reset(0)
        os.kill(keeper().pid, signal.SIGKILL)
        for each in (desktop, other):
            with pytest.raises(DesktopError) as caught:
                each.screenshot()
            assert caught.value.reason is FailureReason.died
            each.reset(1)
            each.screenshot()


def test_desktops_close_in_any_order() -> None:
    keeper()
    before = own()
    desktops = [LocalDesktop(template=None, isolated=i % 2 == 0) for i in range(4)]
    for seed, desktop in enumerate(desktops):
        desktop.reset(seed)
    for i in (2, 0, 3, 1):
        desktops[i].close()
        for open_one in {2: (0, 1, 3), 0: (1, 3), 3: (1,), 1: ()}[i]:
            desktops[open_one].screenshot()
    assert soon(lambda: own() == before)


def test_a_desktop_can_be_closed_while_a_call_is_under_way() -> None:
    desktop = LocalDesktop(template=None)
    desktop.reset(0)
    thread, seen = in_thread(lambda: desktop.run("touch /tmp/began; sleep 60", shell=True, timeout=60))
    address, server = desktop.forwarded(SERVER), desktop.server
    assert address is not None
    assert server is not None
    other = GuestClient(*address, server[1])
    until(lambda: other.post_form("/file", {"file_path": "/tmp/began"}, timeout=20).ok, "the command did not start")
    other.close()
    desktop.close()
    thread.join(20)
    assert not thread.is_alive()
    assert [error.reason for error in seen if isinstance(error, DesktopError)] == [FailureReason.died]


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "bare"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("phase", ["_spawn", "_await_started", "_places", "_await_ready"])
def test_a_desktop_can_be_closed_while_it_starts(
    monkeypatch: pytest.MonkeyPatch, phase: str, done: bool, isolated: bool
) -> None:
    """The start stops before or after one of its phases until the close has begun."""
    keeper()
    before, reached = own(), threading.Event()
    work = getattr(GuestProcess, phase)

    def await_close(process: GuestProcess) -> None:
        reached.set()
        until(lambda: process._given_up, "close did not give the start up")

    def stopped(process: GuestProcess, *arguments: object) -> object:
        if not done:
            await_close(process)
        result = work(process, *arguments)
        if done:
            await_close(process)
        return result

    monkeypatch.setattr(GuestProcess, phase, stopped)
    desktop = LocalDesktop(640, 400, template=None, isolated=isolated)
    thread, seen = in_thread(lambda: desktop.reset(0))
    assert reached.wait(60)
    desktop.close()
    thread.join(60)
    assert not thread.is_alive()
    assert [error.reason for error in seen if isinstance(error, DesktopError)] == [FailureReason.never_ready]
    assert desktop.server is None
    assert soon(lambda: own() == before)


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "bare"])
def test_a_desktop_can_be_closed_before_its_guest_is_started(monkeypatch: pytest.MonkeyPatch, isolated: bool) -> None:
    """The close happens while the start waits for its turn."""
    keeper()
    before, desktop = own(), LocalDesktop(640, 400, template=None, isolated=isolated)

    @contextmanager
    def turn() -> Iterator[None]:
        desktop.close()
        yield

    monkeypatch.setattr(desktop, "_turn", turn)
    with pytest.raises(DesktopError) as caught:
        desktop.reset(0)
    assert caught.value.reason is FailureReason.never_ready
    assert desktop.server is None
    assert own() == before


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Exception]]:
    """Runs a function in a thread; returns the thread and a list for its exception."""
    seen: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  the test checks the exception
            seen.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, seen


def test_sixteen_start_at_once_without_a_timeout() -> None:
    """Admission control queues the starts: none times out, however few cores there are."""
    desktops = [LocalDesktop(template=None, width=640, height=480) for _ in range(16)]
    failed: list[BaseException] = []

    def begin(desktop: LocalDesktop, seed: int) -> None:
        try:
            desktop.reset(seed)
            desktop.screenshot()
        except DesktopError as error:
            failed.append(error)

    threads = [threading.Thread(target=begin, args=(desktop, i)) for i, desktop in enumerate(desktops)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    for desktop in desktops:
        desktop.close()
    assert failed == []


def test_the_warm_pool_hands_out_the_same_screen_as_a_reset_does() -> None:
    """A desktop prepared without a seed shows the seed's screen and nothing of the previous episode."""
    with LocalDesktop(template=None) as direct:
        frames = []
        for seed in range(3):
            direct.reset(seed)
            frames.append(direct.screenshot().pixels.copy())
    assert (frames[0] != frames[1]).any()
    pool = WarmPool(lambda: LocalDesktop(template=None), 1)
    desktop = pool.desktop()
    for seed in (0, 1, 2, 1, 0):
        desktop.reset(seed)
        assert (desktop.screenshot().pixels == frames[seed]).all(), seed
        with pytest.raises(FileNotFoundError):
            desktop.read_file("/tmp/left")
        desktop.write_file("/tmp/left", b"x")
        assert desktop.server is not None
        assert desktop.forwarded(9222) is not None
    desktop.close()
    pool.close()


def test_a_prepared_desktop_that_exited_is_started_again() -> None:
    with LocalDesktop(template=None) as desktop:
        desktop.prepare()
        assert desktop._guest_process is not None
        assert desktop._guest_process.inside is not None
        os.kill(desktop._guest_process.inside, signal.SIGKILL)
        desktop.reset(1)
        desktop.screenshot()


# --- HOME ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def template() -> Iterator[Path]:
    """A small template that an ordinary user can read."""
    with tempfile.TemporaryDirectory(prefix="osworld-gym-template-") as folder:
        home = Path(folder) / "home"
        (home / ".config/app").mkdir(parents=True)
        (home / ".config/app/settings.ini").write_text("greeting=no\n")
        (home / "Desktop/old").mkdir(parents=True)
        (home / "Desktop/old/file.txt").write_text("old")
        (home / ".hidden").write_text("h")
        (home / "link").symlink_to("Desktop/old/file.txt")
        (home / "run.sh").write_text("echo ran")
        (home / "run.sh").chmod(0o700)
        yield home


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("home", ["overlay", "copy"])
def test_home_begins_with_the_template_and_never_changes_it(template: Path, home: Literal["overlay", "copy"]) -> None:
    before = content(template)
    with LocalDesktop(template=template, home=home) as desktop:
        for seed in range(2):
            desktop.reset(seed)
            look = desktop.run(
                "cat ~/.config/app/settings.ini ~/link ~/.hidden; ~/run.sh; stat -c %U ~ ~/.hidden", shell=True
            )
            assert look.output == "greeting=no\noldhran\nuser\nuser\n", look
            change = (
                "echo yes > ~/.config/app/settings.ini; rm -r ~/Desktop/old; mkdir ~/Desktop/old; mv ~/.hidden ~/seen"
            )
            changed = desktop.run(f"set -e; {change}; ls -A ~/Desktop/old; cat ~/seen", shell=True)
            assert (changed.returncode, changed.output, changed.error) == (0, "h", "")
    assert content(template) == before


PLAIN = """
import os, sys
from osworld_gym.desktops.local.desktop import LocalDesktop
template, home = sys.argv[1:]
assert os.getuid() == 65534
with LocalDesktop(template=template, home=home) as desktop:
    for seed in range(2):
        desktop.reset(seed)
        change = "echo x > ~/.hidden; rm -r ~/Desktop/old"
        got = desktop.run(f"cat ~/.config/app/settings.ini; {change}; id -un; id -u", shell=True)
        assert (got.output, got.error) == ("greeting=no\\nuser\\n1000\\n", ""), got
        desktop.screenshot()
print("done")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="every other test ran as an ordinary user already")
@pytest.mark.parametrize(("home", "owned"), [("overlay", True), ("copy", True), ("auto", False)])
def test_an_ordinary_user_needs_no_root(template: Path, home: str, owned: bool) -> None:
    """As root, becomes an ordinary user in a mount namespace in which this Python's folders are accessible."""
    template.parent.chmod(0o755)
    subprocess.run(["chmod", "-R", "a+rX", str(template)], check=True)
    if owned:
        subprocess.run(["chown", "-R", "65534:65534", str(template)], check=True)
    package = Path(records.__file__).parents[4]
    opened = "".join(
        f"mount --bind {path} /mnt; mount -t tmpfs -o mode=755 tmpfs {path.parts[0]}{path.parts[1]}; mkdir -p {path};"
        f"mount --move /mnt {path};"
        for path in {Path(sys.base_prefix)}
        if not os.stat(f"/{path.parts[1]}").st_mode & 0o001
    )
    drop = "setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp PYTHONDONTWRITEBYTECODE=1"
    command = f'set -e; {opened} exec {drop} PYTHONPATH={package} "$@"'
    arguments = ["unshare", "-m", "sh", "-c", command, "sh", sys.executable, "-c", PLAIN, str(template), home]
    got = subprocess.run(arguments, capture_output=True, text=True, timeout=110, check=False)
    assert got.stdout == "done\n", got.stderr
    assert not Path(tempfile.gettempdir(), "osworld-gym-65534").exists()


# --- the soak --------------------------------------------------------------------------------------------------------


def resources() -> dict[str, Any]:
    """Everything that a desktop might leave behind, apart from memory."""
    processes = [psutil.Process(), psutil.Process(keeper().pid)]
    below, names = own()
    return {
        "processes": len(below),
        "names": names,
        # other tests of this machine mount a small disk of their own
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if "osworld-gym" in line],
        "groups": [path for parent in cgroups.find().values() for path in parent.glob(f"osworld-gym-{keeper().pid}-*")],
        "descriptors": [process.num_fds() for process in processes],
        "threads": threading.active_count(),
    }


def nothing_more(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether nothing was left; descriptors and threads of earlier tests may have been closed meanwhile."""
    counted = ("descriptors", "threads")
    same = all(now[key] == before[key] for key in before if key not in counted)
    fewer = all(new <= old for new, old in zip(now["descriptors"], before["descriptors"], strict=True))
    return same and fewer and now["threads"] <= before["threads"]


def soak(resets: int, desktops: int = 2) -> None:
    """``resets`` resets in total, on parallel desktops with both kinds of HOME, each with a running program."""
    folder = Path(tempfile.mkdtemp(prefix="osworld-gym-template-"))
    (folder / "settings").write_text("x" * 1000)
    with LocalDesktop(template=None) as first:
        first.reset(0)
    before, rss = resources(), psutil.Process(keeper().pid).memory_info().rss
    failed: list[str] = []

    def play(i: int) -> None:
        with LocalDesktop(template=folder if i % 2 else None, width=640, height=480) as desktop:
            for seed in range(resets // desktops):
                try:
                    desktop.reset(seed)
                    desktop.run("setsid -f sleep 300", shell=True)
                    if len(desktop.screenshot().png) < 1000:
                        failed.append(f"{seed}: a small frame")
                except DesktopError as error:
                    failed.append(f"{seed}: {error}")

    threads = [threading.Thread(target=play, args=(i,)) for i in range(desktops)]
    start = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"{resets} resets in {time.monotonic() - start:.0f} s")
    shutil.rmtree(folder)
    assert failed == []
    assert soon(lambda: nothing_more(resources(), before)), f"{resources()} after, {before} before"
    assert psutil.Process(keeper().pid).memory_info().rss - rss < 8 << 20


def test_forty_resets_leave_nothing() -> None:
    soak(40)


@pytest.mark.nightly
def test_two_hundred_resets_leave_nothing() -> None:
    soak(200)


@pytest.mark.soak
def test_thousands_of_resets_leave_nothing() -> None:
    soak(int(os.environ.get("SOAK_RESETS", "2000")))
