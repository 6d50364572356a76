"""The local provider on a real X server: its suite, start and exit, and the isolation of its sandbox."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from processes import names

from osworld_gym.desktops.checks import run_checks
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.keeper_client import keeper
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.checks import MAX_ORACLE_STEPS, check_task
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.base import play_oracle
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.suites.desktop.local import local_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action

pytestmark = pytest.mark.desktop

SUITE = local_suite()
OWNER = """
import sys, time
from osworld_gym.desktops.local.desktop import LocalDesktop
isolated = sys.argv[1] == "isolated"
desktops = [LocalDesktop(isolated=isolated) for _ in range(2)]
for desktop in desktops:
    desktop.reset(0)
    desktop.setup({"type": "launch", "parameters": {"command": ["xterm"], "window": True}})
    desktop.run("setsid -f sleep 300; (sleep 301 &)", shell=True)
print("ready", flush=True)
time.sleep(300)
"""


@pytest.fixture(scope="module")
def desktop() -> Iterator[LocalDesktop]:
    with LocalDesktop() as made:
        yield made


@dataclass(frozen=True)
class Seen:
    """A process and its name at the time it was listed."""

    process: psutil.Process
    name: str


def below(pid: int, before: Sequence[Seen] = ()) -> list[Seen]:
    """The current descendants of ``pid``, without those in ``before``."""
    known = {seen.process for seen in before}
    return [Seen(child, name) for child, name in names(pid).items() if child not in known]


def gone(seen: Sequence[Seen], seconds: float = 10.0) -> bool:
    _, alive = psutil.wait_procs([each.process for each in seen], timeout=seconds)
    return not alive


def folders(pid: int) -> list[Path]:
    """The current files of the owner ``pid`` on this machine's disk."""
    return list(Path("/tmp").glob(f"osworld-gym-*/{pid}-*"))


@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_task_is_0_untouched_0_idle_and_1_after_its_oracle(desktop: LocalDesktop, task: Task) -> None:
    assert check_task(desktop, task, seed=0) == [], desktop.windows()


@pytest.mark.parametrize("name", ["editor-save-as", "files-rename", "files-move"])
def test_the_native_style_solves_too(desktop: LocalDesktop, name: str) -> None:
    task = SUITE.task(f"local-{name}")
    begin(desktop, task, 1)
    _, stop = play_oracle(desktop, make_oracle(task, "native"), max_steps=MAX_ORACLE_STEPS)
    assert verify(task, desktop, stop=stop).success, desktop.windows()


def begin(desktop: LocalDesktop, task: Task, seed: int) -> None:
    desktop.reset(seed)
    for step in task.config:
        desktop.setup(step)


@pytest.mark.parametrize("name", ["editor-config", "files-move", "terminal-write"])
def test_a_task_starts_with_the_same_screen(desktop: LocalDesktop, name: str) -> None:
    frames = []
    for _ in range(2):
        begin(desktop, SUITE.task(f"local-{name}"), 5)
        frames.append(desktop.screenshot().pixels.copy())
    assert int((frames[0] != frames[1]).any(axis=-1).sum()) == 0
    assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 20  # an application is running


def test_seeds_differ(desktop: LocalDesktop) -> None:
    desktop.reset(0)
    first = desktop.screenshot().pixels.copy()
    desktop.reset(1)
    assert (desktop.screenshot().pixels != first).any()


@pytest.mark.parametrize("mode", ["isolated", "bare"])
def test_nothing_is_left_when_the_owner_is_killed(mode: str) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, mode], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            assert soon(lambda: [seen.name for seen in below(owner.pid)].count("sleep") == 4)
            started = below(owner.pid)
            assert [seen.name for seen in started].count("Xvfb") == 2
        finally:
            owner.kill()
    assert gone(started)
    assert soon(lambda: folders(owner.pid) == [])


@pytest.mark.parametrize("isolated", [True, False])
def test_nothing_is_left_after_close_and_reset(isolated: bool) -> None:
    keeper()  # runs as long as this process does
    (folder,) = folders(os.getpid())
    others, before = below(os.getpid()), set(folder.iterdir())
    with LocalDesktop(isolated=isolated) as desktop:
        for seed in range(3):
            desktop.reset(seed)
            desktop.run("setsid -f sleep 300", shell=True)
            started = below(os.getpid(), others)
            assert [seen.name for seen in started].count("Xvfb") == 1
        desktop.close()
        assert gone(started, 1.0)
    assert set(folder.iterdir()) == before


def inside(desktop: LocalDesktop) -> int:
    assert desktop._guest_process is not None
    assert desktop._guest_process.inside is not None
    return desktop._guest_process.inside


def test_a_killed_guest_is_died_and_the_next_reset_works() -> None:
    keeper()
    others = below(os.getpid())
    with LocalDesktop() as desktop:
        desktop.reset(0)
        started = below(os.getpid(), others)
        os.kill(inside(desktop), signal.SIGKILL)
        with pytest.raises(DesktopError) as caught:
            desktop.screenshot()
        assert caught.value.reason is FailureReason.died
        assert gone(started)  # the processes of its namespace ended with it
        desktop.reset(0)
        desktop.screenshot()


def test_a_killed_x_server_is_died() -> None:
    with LocalDesktop() as desktop:
        desktop.reset(0)
        with suppress(DesktopError):  # the desktop may end before it has answered
            desktop.run(["pkill", "-9", "Xvfb"])
        assert soon(lambda: fails(desktop, FailureReason.died))
        desktop.reset(0)
        desktop.screenshot()


def soon(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def fails(desktop: LocalDesktop, reason: FailureReason) -> bool:
    try:
        desktop.screenshot()
    except DesktopError as error:
        return error.reason is reason
    return False


def test_a_stopped_guest_is_hung_and_close_still_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osworld_gym.desktops.guest_server.desktop.ANSWER", 0.5)
    keeper()
    others = below(os.getpid())
    with LocalDesktop() as desktop:
        desktop.reset(0)
        started = below(os.getpid(), others)
        os.kill(inside(desktop), signal.SIGSTOP)
        with pytest.raises(DesktopError) as caught:
            desktop.screenshot()
        assert caught.value.reason is FailureReason.hung
        desktop.close()
        assert gone(started)


def test_a_failed_step_is_setup_failed(desktop: LocalDesktop) -> None:
    desktop.reset(0)
    for kind, parameters in (
        ("launch", {"command": ["no_such_program"]}),
        ("launch", {"command": ["false"], "window": True}),
        ("open", {"path": "/no/such/file.txt"}),
        ("execute", {"command": ["no_such_program"]}),
        ("write_file", {"path": "/usr/no", "content": ""}),
    ):
        with pytest.raises(DesktopError) as caught:
            desktop.setup({"type": kind, "parameters": parameters})
        assert caught.value.reason is FailureReason.setup_failed, kind


def test_apps_are_there_after_every_reset() -> None:
    with LocalDesktop(width=800, height=600, apps=("xterm -T first", ["xterm", "-T", "second"])) as desktop:
        for seed in (0, 1):
            desktop.reset(seed)
            assert [window["title"] for window in desktop.windows()] == ["first", "second"]
            assert desktop.screenshot().pixels.shape == (600, 800, 3)


def test_the_sandbox_hides_the_machine(desktop: LocalDesktop, tmp_path: Path) -> None:
    desktop.reset(0)
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    look = f"cat {secret} /etc/shadow {Path.home()}/.bashrc; ls {Path.home()}; echo $?"
    assert "secret" not in desktop.run(look, shell=True).output
    with pytest.raises(FileNotFoundError):
        desktop.read_file(str(secret))
    pids = [int(pid) for pid in desktop.run("ls /proc | grep -E '^[0-9]+$'", shell=True).output.split()]
    assert len(pids) < 20
    assert desktop.run(["touch", "/usr/x", "/etc/x", "/x"]).returncode != 0
    probe = "import socket; socket.create_connection(('127.0.0.1', {}), 2)"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refused = desktop.run(["python", "-c", probe.format(listener.getsockname()[1])])
    assert "ConnectionRefusedError" in refused.error
    interfaces = desktop.run(["cat", "/proc/net/dev"]).output.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert "CapEff:\t0000000000000000" in desktop.run(["cat", "/proc/self/status"]).output
    environment = desktop.run(["env"]).output
    assert not {name for name in ("PYTEST_CURRENT_TEST", "VIRTUAL_ENV") if name in environment}


def test_without_a_sandbox_only_the_private_folders_are_missed() -> None:
    failed = [r.name for r in run_checks(lambda: LocalDesktop(isolated=False)) if r.outcome == "failed"]
    names = ("earlier/episode.txt", "check.txt", "mine.txt", "input.log", "log_input.py", "a folder/naïve 'name'.bin")
    for name in names:
        Path("/tmp", name).unlink(missing_ok=True)
    assert failed == ["reset_leaves_nothing", "desktops_are_apart"]


def test_a_step_and_a_reset_are_fast(desktop: LocalDesktop) -> None:
    """Loose bounds, ten times the time on an idle core; the measurements are printed."""
    resets, steps = [], []
    for seed in range(5):
        start = time.monotonic()
        desktop.reset(seed)
        desktop.screenshot()
        resets.append(time.monotonic() - start)
    desktop.setup({"type": "launch", "parameters": {"command": ["mousepad"], "window": True}})
    for i in range(20):
        start = time.monotonic()
        desktop.perform([Action("type", content=f"line {i}\n")])
        desktop.screenshot()
        steps.append(time.monotonic() - start)
    print(f"reset + frame: {np.median(resets):.2f} s, step + frame: {np.median(steps):.2f} s")
    assert np.median(resets) < 4.0
    assert np.median(steps) < 1.5


def test_terminals_keep_their_size_and_other_windows_are_maximised(desktop: LocalDesktop) -> None:
    desktop.reset(0)
    width, height = desktop.screen_size
    desktop.launch(["xterm"], shell=False, window=True)
    terminal = desktop.windows()[0]
    assert terminal["width"] < width
    assert terminal["height"] < height / 1.2
    desktop.launch(["mousepad"], shell=False, window=True)
    editor = next(window for window in desktop.windows() if window["id"] != terminal["id"])
    assert editor["width"] == width


def test_the_time_zone_is_not_the_one_that_a_task_asks_for(desktop: LocalDesktop) -> None:
    """A task of OSWorld is solved when timedatectl's fourth line ends in UTC."""
    desktop.reset(0)
    said = desktop.run(["timedatectl", "status"]).output
    assert "Time zone: Asia/Hong_Kong (HKT, +0800)" in said
    assert desktop.run(["date", "+%Z"]).output == "HKT\n"
    assert desktop.run(["timedatectl", "set-timezone", "UTC"]).returncode == 0
    assert "UTC" in desktop.run(["timedatectl", "status"]).output.splitlines()[3]
