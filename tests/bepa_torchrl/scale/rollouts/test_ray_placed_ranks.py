"""Ranks that Ray places: their environment, output and exit codes, and how all of them end; without a model."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from polling import until
from ray.util.placement_group import placement_group_table

from bepa_torchrl.experiment.method_handle import LAUNCHER, exit_text
from bepa_torchrl.failures import BAD_INPUT, INFRASTRUCTURE
from bepa_torchrl.scale.sharding.placement.bundles import Needs
from bepa_torchrl.scale.sharding.placement.ray_ranks import Outcome, PlacementError, RayRanks, placed_ranks

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

#: a rank, before it does what a test wants
RANK = """
import os, signal, sys, time
from bepa_torchrl.experiment.method_handle import end_with_launcher
end_with_launcher()
rank = int(os.environ["RANK"])
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "GIVEN"
print("rank", *(os.environ[name] for name in names), flush=True)
print("an error", file=sys.stderr)
"""
#: the store, which takes seconds to import
STORE = "from bepa_torchrl.scale.sharding.torchrun import torchrun_job\njob = torchrun_job()\nstore = job.store()\n"
WAIT = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\ntime.sleep(600)\n"


class Lines:
    """The output of ranks."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, str]] = []

    def __call__(self, rank: int, name: str, line: str) -> None:
        self.lines.append((rank, name, line))

    def count(self, line: str) -> int:
        return sum(each == line for _, _, each in self.lines)

    def started(self) -> int:
        return sum(line.startswith("rank ") for _, _, line in self.lines)


def placed(lines: Lines, ranks: int = 2, seconds: float = 60.0, **needs: Any) -> Any:
    asked = Needs(ranks=ranks, cpus_per_rank=1.0, gpus_per_rank=0, **needs)
    return placed_ranks(asked, launcher=LAUNCHER, describe=exit_text, on_line=lines, seconds=seconds, fix="add nodes")


def start(ranks: RayRanks, code: str, folder: Path) -> None:
    ranks.start(["-c", RANK + code], {"GIVEN": "by the run"}, str(folder), attempt=3)


def processes() -> list[psutil.Process]:
    """Processes of this machine that are ranks of a test."""
    return [each for each in psutil.process_iter() if _environment(each).get("GIVEN") == "by the run"]


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def groups() -> list[str]:
    """The states of placement groups that are not removed."""
    states = (each["state"] for each in placement_group_table().values())
    return [state for state in states if state != "REMOVED"]


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    request.getfixturevalue("cluster")
    yield
    until(lambda: not groups(), "a placement group is left")
    until(lambda: ray.available_resources().get("CPU") == 4.0, "an actor is left")
    assert not processes()


def test_ranks_get_torchruns_environment_and_their_output_is_passed_on(tmp_path: Path) -> None:
    lines = Lines()
    with placed(lines) as ranks:
        start(ranks, "", tmp_path)
        assert ranks.follow() == Outcome(0, None)
    assert sorted(lines.lines) == [
        (0, "err", "an error"),
        (0, "out", "rank 0 2 0 2 3 127.0.0.1 by the run"),
        (1, "err", "an error"),
        (1, "out", "rank 1 2 1 2 3 127.0.0.1 by the run"),
    ]


@pytest.mark.parametrize(
    ("code", "expected"), [("sys.exit(2)", BAD_INPUT), ("os.kill(os.getpid(), 9)", INFRASTRUCTURE)]
)
def test_the_exit_code_is_rank_0s(tmp_path: Path, code: str, expected: int) -> None:
    lines = Lines()
    with placed(lines) as ranks:
        start(ranks, f"if rank == 0: {code}\n{WAIT}", tmp_path)
        outcome = ranks.follow()
    assert outcome.code == expected
    killed = "rank 0 of 2 ended by signal SIGKILL (killed from outside, or by the system"
    assert str(outcome.lost).startswith(killed) if "kill" in code else outcome.lost is None


@pytest.mark.parametrize("victim", ["process", "actor"])
def test_a_killed_rank_ends_the_others(tmp_path: Path, victim: str) -> None:
    """Rank 0 does not train, and so does not hear of it: it gets SIGTERM."""
    lines = Lines()
    with placed(lines) as ranks:
        start(ranks, WAIT, tmp_path)
        ranks._until(lambda: lines.started() == 2, 120.0)
        (follower,) = (each for each in processes() if each.environ()["RANK"] == "1")
        (follower.parent() if victim == "actor" else follower).send_signal(signal.SIGKILL)
        begun = time.monotonic()
        outcome = ranks.follow()
        assert time.monotonic() - begun < 60.0
    assert outcome.code == INFRASTRUCTURE
    ways = {"process": "rank 1 of 2 ended by signal SIGKILL", "actor": "rank 1 of 2 was lost with its actor ("}
    assert str(outcome.lost).startswith(ways[victim])
    assert f", on node {ranks.host(1)}" in str(outcome.lost)


def test_rank_0_hears_of_a_lost_rank_and_ends_by_itself(tmp_path: Path) -> None:
    lines = Lines()
    hears = (
        "if rank == 1: os.kill(os.getpid(), 9)\n"
        "told = job.store('0/')\ntold.wait(['exited/1'])\nprint(told.get('exited/1').decode())\nsys.exit(3)\n"
    )
    with placed(lines) as ranks:
        start(ranks, f"{STORE}if rank == 0: store.add('parts', 1)\nstore.wait(['parts'])\n{hears}", tmp_path)
        assert ranks.follow().code == INFRASTRUCTURE
    (told,) = (line for _, _, line in lines.lines if line.startswith("ended by"))
    assert told.startswith("ended by signal SIGKILL (killed from outside, or by the system when memory ran out")


def test_an_interrupt_reaches_rank_0_and_the_others_end(tmp_path: Path) -> None:
    lines = Lines()
    # Ray's processes block SIGINT, and a shell starts jobs in the background with SIGINT ignored
    code = (
        f"{STORE}signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT}})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try: print('ready', flush=True); store.wait(['end']) if rank else time.sleep(600)\n"
        "except KeyboardInterrupt: print('in order')\n"
        "store.set('end', '')\n"
    )
    with placed(lines) as ranks:
        start(ranks, code, tmp_path)
        ranks._until(lambda: lines.count("ready") == 2, 120.0)
        ranks.interrupt()
        assert ranks.follow() == Outcome(0, None)
    assert (0, "out", "in order") in lines.lines


def test_a_cluster_without_room_is_an_error_that_says_what_was_asked_for() -> None:
    begun = time.monotonic()
    with pytest.raises(PlacementError) as raised, placed(Lines(), ranks=5, seconds=2.0):
        raise AssertionError("placed")
    assert time.monotonic() - begun < 30.0
    assert str(raised.value) == (
        "the Ray cluster had no room within 2 s for 5 trainer ranks with 1 CPU each: together 5 CPU; it has 4 CPU on 1 "
        "node; add nodes"
    )


def test_room_for_the_engines_is_checked_before_the_ranks_start() -> None:
    with pytest.raises(PlacementError) as raised, placed(Lines(), seconds=1.0, services=2, gpus_per_service=0.5):
        raise AssertionError("placed")
    assert "2 rollout services with 0.5 GPU each: together 2 CPU, 1 GPU; it has 4 CPU, 0 GPU" in str(raised.value)


def test_what_others_hold_is_named() -> None:
    lines = Lines()
    with placed(lines, ranks=3), pytest.raises(PlacementError) as raised, placed(lines, seconds=1.0):
        raise AssertionError("placed")
    assert "it has 4 CPU on 1 node (free: 1 CPU); add nodes" in str(raised.value)


def test_a_folder_that_a_node_does_not_see_is_named(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.write_text("x")
    with placed(Lines()) as ranks:
        assert ranks.unseen(str(marker), "x", str(tmp_path)) is None
        assert ranks.unseen(str(marker), "other", str(tmp_path)) == (0, ranks.host(0), str(tmp_path))
        assert ranks.unseen(str(marker), "x", str(tmp_path / "none")) == (0, ranks.host(0), str(tmp_path / "none"))


def test_ranks_are_ended_if_the_caller_fails(tmp_path: Path) -> None:
    """In order: SIGTERM first. The fixture checks that nothing is left."""
    lines = Lines()
    code = (
        "signal.signal(signal.SIGTERM, lambda *_: print('in order', flush=True) or sys.exit(143))\n"
        "print('ready', flush=True)\ntime.sleep(600)\n"
    )

    def failing() -> None:
        with placed(lines) as ranks:
            start(ranks, code, tmp_path)
            ranks._until(lambda: lines.count("ready") == 2, 120.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert lines.count("in order") == 2


def test_the_program_that_places_ranks_does_not_import_torch() -> None:
    """It is on a machine without a GPU, next to the cluster's head."""
    code = (
        "import sys, bepa_torchrl.commands.train, bepa_torchrl.experiment.ray_driver; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
