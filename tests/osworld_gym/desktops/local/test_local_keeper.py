"""The keeper, mostly without a desktop: user ids, control groups, memory, records of owners that have ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from polling import until

from osworld_gym.desktops.local import keeper_client
from osworld_gym.desktops.local.guest_process import Limits
from osworld_gym.desktops.local.keeper import cgroups, records, usage
from osworld_gym.desktops.local.keeper.main import EACH, FIRST, LAST, NOBODY, desktop_user
from osworld_gym.guest.process.processes import MARKER, state_of
from osworld_gym.guest.server.forward import to_address

WHOLE = "         0          0 4294967295\n"


# --- users -----------------------------------------------------------------------------------------------------------


def test_an_ordinary_user_stays_itself() -> None:
    assert desktop_user(3, uid=1000, keeper=77, uid_map=WHOLE) == -1


def test_root_becomes_another_user_for_each_desktop_of_each_keeper() -> None:
    users = {desktop_user(slot, 0, keeper, WHOLE) for keeper in (1, 2, 4_194_303) for slot in range(EACH)}
    assert len(users) == 3 * EACH
    assert min(users) >= FIRST
    assert max(users) <= LAST


def test_a_container_without_those_users_has_nobody() -> None:
    assert desktop_user(0, 0, 77, "0 100000 65536\n") == NOBODY


def test_a_root_that_is_an_ordinary_user_outside_stays() -> None:
    assert desktop_user(0, 0, 77, "0 1000 1\n") == -1


# --- control groups --------------------------------------------------------------------------------------------------


def test_version_1_groups_are_found_by_controller(tmp_path: Path) -> None:
    (tmp_path / "memory/own").mkdir(parents=True)
    (tmp_path / "pids").mkdir()
    mounts = f"x {tmp_path}/memory cgroup rw,memory 0 0\nx {tmp_path}/pids cgroup rw,pids 0 0\nx /x tmpfs rw 0 0\n"
    found = cgroups.find(mounts, "4:memory:/own\n8:pids:/\n0::/\n", "")
    assert found == {"memory": tmp_path / "memory/own", "pids": tmp_path / "pids"}


@pytest.mark.parametrize(("controllers", "wanted"), [("cpu memory pids", True), ("cpu memory", False), ("", False)])
def test_a_version_2_group_must_hand_its_controllers_down(tmp_path: Path, controllers: str, wanted: bool) -> None:
    (tmp_path / "slice").mkdir()
    (tmp_path / "slice/cgroup.subtree_control").write_text(f"{controllers}\n")
    found = cgroups.find(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n", "0::/slice\n", "")
    assert found == ({cgroups.UNIFIED: tmp_path / "slice"} if wanted else {})


def test_a_delegated_group_is_taken_as_named(tmp_path: Path) -> None:
    assert cgroups.find("", "", str(tmp_path)) == {cgroups.UNIFIED: tmp_path}


def test_a_folder_that_is_no_control_group_limits_nothing_and_stays_clean(tmp_path: Path) -> None:
    group = cgroups.make({cgroups.UNIFIED: tmp_path, "memory": tmp_path / "missing"}, "desktop", 1 << 20, 10)
    assert not group.folders
    assert not group.limits_memory
    assert list(tmp_path.iterdir()) == []


def test_version_2_limits_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every machine allows such a group, so this folder simulates it: new subfolders contain the kernel's files."""
    make = Path.mkdir

    def mkdir(self: Path) -> None:
        make(self)
        for file in ("memory.max", "memory.oom.group", "pids.max"):
            (self / file).write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    group = cgroups.make({cgroups.UNIFIED: tmp_path}, "desktop", 5 << 20, 10)
    assert group.limits_memory
    written = {file.name: file.read_text() for file in (tmp_path / "desktop").iterdir()}
    assert written == {"memory.max": str(5 << 20), "memory.oom.group": "1", "pids.max": "10"}


def test_a_kill_for_memory_is_counted(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert cgroups.Group({cgroups.UNIFIED: tmp_path}).kills() == 2
    assert cgroups.Group({"pids": tmp_path}).kills() == 0


# --- memory ----------------------------------------------------------------------------------------------------------


def test_what_a_process_holds_is_seen_also_when_no_map_shows_it() -> None:
    code = (
        "import os, time; f = os.memfd_create('x'); os.write(f, bytes(48 << 20)); print(1, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            processes = usage.scan()
            assert processes[child.pid][0] == os.getpid()
            assert usage.tree(child.pid, processes) == [child.pid]
            assert child.pid in usage.tree(os.getpid(), processes)
            assert usage.hidden([child.pid]) == 48 << 20
            assert 0 < usage.proportional([child.pid]) <= usage.resident([child.pid], processes)
            assert usage.proportional([child.pid]) < 48 << 20
        finally:
            child.kill()
    assert usage.started(child.pid) == 0


def test_limits_are_checked() -> None:
    for wrong in ({"memory": 64}, {"disk": 1}, {"processes": 8}, {"memory": "4096"}, {"disk": 99.5}):
        with pytest.raises(ValueError, match="expected at least"):
            Limits(**wrong)  # type: ignore[arg-type]


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return records.run_directory()


def sleeper(marker: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={**os.environ, MARKER: marker})


def leave(run: Path, owner: str, pids: list[tuple[int, int]], marker: str) -> Path:
    folder = run / owner
    (folder / "stage").mkdir(parents=True)
    (folder / "1.json").write_text(json.dumps({"pids": pids, "marker": marker, "groups": [str(run / "no group")]}))
    return folder


def test_only_what_gone_owners_left_is_reaped(run_directory: Path) -> None:
    """Ends processes and removes folders of ended owners, but not of a running one or of a reused process id."""
    names = ("recorded", "marked", "living", "reused", "foreign")
    with sleeper("m0") as recorded, sleeper("m1") as marked, sleeper("m2") as living, sleeper("m3") as reused:
        seen = {"recorded": recorded, "marked": marked, "living": living, "reused": reused}
        processes = [psutil.Process(process.pid) for process in seen.values()]  # before they end
        try:
            start = usage.started(recorded.pid)
            gone = leave(run_directory, "4194303-5", [(recorded.pid, start), (reused.pid, 1)], "m1")
            me = leave(run_directory, f"{os.getppid()}-{usage.started(os.getppid())}", [(living.pid, 1)], "m2")
            foreign = run_directory / "notes"
            foreign.mkdir()
            lines = records.reap(owner=os.getpid())
            assert lines == ["desktop 1 of process 4194303"]
            assert not gone.exists()
            assert (me.is_dir(), foreign.is_dir()) == (True, True)
            _, alive = psutil.wait_procs(processes, timeout=2)
            left = {process.pid for process in alive}
            assert [name for name in names if name in seen and seen[name].pid in left] == ["living", "reused"]
        finally:
            for process in seen.values():
                process.kill()


def test_a_number_that_was_given_out_again_is_not_its_owner(run_directory: Path) -> None:
    folder = leave(run_directory, f"{os.getppid()}-1", [], "m4")
    assert records.reap(owner=os.getpid()) == [f"desktop 1 of process {os.getppid()}"]
    assert not folder.exists()


def test_a_run_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"osworld-gym-{os.getuid()}").symlink_to("elsewhere")
    with pytest.raises(PermissionError, match="fix: remove it"):
        records.run_directory()


# --- ports -----------------------------------------------------------------------------------------------------------


def test_a_connection_is_pumped_both_ways_with_its_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as near, socket.create_server(("127.0.0.1", 0)) as far:
        address = near.getsockname()
        to_address(near.dup(), ("127.0.0.1", far.getsockname()[1]))
        with socket.create_connection(address) as client:
            server, _ = far.accept()
            with server:
                sent = os.urandom(3 << 20)
                client.sendall(b"question")
                client.shutdown(socket.SHUT_WR)
                got = b""
                while part := server.recv(1 << 16):
                    got += part
                assert got == b"question"
                server.sendall(sent)
            got = b""
            while part := client.recv(1 << 16):
                got += part
        assert got == sent
        near.shutdown(socket.SHUT_RDWR)


def test_nobody_there_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as near, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        to_address(near.dup(), ("127.0.0.1", port))
        with socket.create_connection(near.getsockname(), 5) as client:
            began = time.monotonic()
            assert client.recv(1) == b""
            assert time.monotonic() - began < 5
        near.shutdown(socket.SHUT_RDWR)


# --- a keeper that was stopped ----------------------------------------------------------------------------------------


@pytest.fixture
def own_keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A keeper for this test, separate from that of the test process."""
    monkeypatch.setattr(keeper_client, "_keeper", None)
    yield
    if keeper_client._keeper is not None:
        keeper_client._keeper.kill()


@pytest.mark.usefixtures("own_keeper")
def test_a_stopped_keeper_is_replaced_within_seconds() -> None:
    """A stopped keeper is still a running process, so only a ping detects it; without the ping a reset took 76 s."""
    first = keeper_client.keeper()
    assert keeper_client.keeper() is first
    os.kill(first.pid, signal.SIGSTOP)
    start = time.monotonic()
    second = keeper_client.keeper()
    assert time.monotonic() - start < 8
    assert second.pid != first.pid
    assert second.replies()
    assert not first.alive


OWNER = """
import time
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.keeper_client import keeper
desktop = LocalDesktop(640, 480, template=None)
desktop.reset(0)
print(keeper().pid, desktop._guest_process.inside, flush=True)
time.sleep(600)
"""


@pytest.mark.desktop
def test_a_desktop_ends_with_its_owner_also_if_the_keeper_is_stopped() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        keeper, inside = map(int, owner.stdout.readline().split())
        os.kill(keeper, signal.SIGSTOP)
        owner.kill()
        try:
            until(lambda: ended(inside), "the guest did not end")
        finally:
            os.kill(keeper, signal.SIGCONT)
    until(lambda: ended(keeper), "the keeper did not end")


def ended(pid: int) -> bool:
    state = state_of(pid)
    return state is None or state.letter == "Z"


@pytest.mark.usefixtures("own_keeper")
def test_a_keeper_that_was_killed_does_not_reply() -> None:
    first = keeper_client.keeper()
    os.kill(first.pid, signal.SIGKILL)
    assert keeper_client.keeper().pid != first.pid
