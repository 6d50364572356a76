"""What ranks ask a cluster for, which is where, the environment of each, and a rank's process; without Ray."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from polling import until
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bepa_torchrl.scale.sharding.placement.bundles import (
    Needs,
    child_environment,
    no_room,
    places,
    rank_environment,
    store_address,
)
from bepa_torchrl.scale.sharding.placement.rank_process import Line, RankProcess, interface_of
from bepa_torchrl.scale.sharding.torchrun import TorchrunJob, torchrun_job

GPUS = Needs(ranks=4, cpus_per_rank=2.0, gpus_per_rank=1, services=2, gpus_per_service=1.0)
CPUS = Needs(ranks=2, cpus_per_rank=0.5, gpus_per_rank=0)


def test_each_rank_has_a_bundle_and_services_are_in_the_total_only() -> None:
    assert GPUS.bundles() == [{"CPU": 2.0, "GPU": 1.0}] * 4
    assert GPUS.total() == {"CPU": 8.0, "GPU": 6.0}
    assert CPUS.bundles() == [{"CPU": 0.5}] * 2
    assert CPUS.total() == {"CPU": 1.0}


@pytest.mark.parametrize(
    ("cluster", "lacking"),
    [
        ({"CPU": 8.0, "GPU": 6.0}, False),
        ({"CPU": 8.0, "GPU": 5.5}, True),
        ({"CPU": 7.0, "GPU": 8.0}, True),
        ({"CPU": 64.0}, True),
    ],
)
def test_ranks_and_engines_have_room_together(cluster: dict[str, float], lacking: bool) -> None:
    assert GPUS.lacking(cluster) is lacking


def test_a_cluster_without_room_says_what_was_asked_for_and_what_there_is() -> None:
    total = {"CPU": 64.0, "GPU": 4.0, "memory": 1e9}
    text = no_room(GPUS, total, {"GPU": 1.0}, 2, seconds=60.0, fix="lower train.ranks")
    assert text == (
        "the Ray cluster had no room within 60 s for 4 trainer ranks with 1 GPU and 2 CPU each, and 2 rollout services "
        "with 1 GPU each: together 8 CPU, 6 GPU; it has 64 CPU, 4 GPU on 2 nodes; lower train.ranks"
    )
    held = no_room(CPUS, {"CPU": 2.0}, {"CPU": 0.5}, 1, seconds=1.0, fix="wait")
    assert held.endswith(
        "2 trainer ranks with 0.5 CPU each: together 1 CPU; it has 2 CPU on 1 node (free: 0.5 CPU); wait"
    )


def test_ranks_are_numbered_node_by_node_and_rank_0_is_on_this_one_if_possible() -> None:
    found = places(["b", "a", "b", "a", "b"], "a")
    assert [(each.rank, each.bundle, each.node, each.local_rank, each.local_ranks) for each in found] == [
        (0, 1, "a", 0, 2),
        (1, 3, "a", 1, 2),
        (2, 0, "b", 0, 3),
        (3, 2, "b", 1, 3),
        (4, 4, "b", 2, 3),
    ]
    assert [each.node for each in places(["b", "a", "b"], "none")] == ["b", "b", "a"]


def test_the_environment_of_a_rank_is_what_torchrun_would_set(monkeypatch: pytest.MonkeyPatch) -> None:
    every = places(["a", "b", "b"], "a")
    gpus = {0: ["3"], 1: ["0"], 2: ["GPU-x"]}
    own = rank_environment(every[2], every, address="10.0.0.1", port=7, attempt=2, gpus=gpus, interface="eth1")
    assert own["CUDA_VISIBLE_DEVICES"] == "0,GPU-x"
    assert own["GLOO_SOCKET_IFNAME"] == "eth1"
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    expected = TorchrunJob(rank=2, ranks=3, local_rank=1, local_ranks=2, host="10.0.0.1", port=7, attempt=2)
    assert torchrun_job() == expected


def test_on_one_node_nothing_is_reachable_from_others() -> None:
    one, two = places(["a", "a"], "a"), places(["a", "b"], "a")
    nothing = {0: [], 1: []}
    options = {"address": "10.0.0.1", "port": 7, "attempt": 0, "gpus": nothing, "interface": "eth1"}
    assert "GLOO_SOCKET_IFNAME" not in rank_environment(one[0], one, **options)  # type: ignore[arg-type]
    assert "CUDA_VISIBLE_DEVICES" not in rank_environment(one[0], one, **options)  # type: ignore[arg-type]
    assert store_address(one, "10.0.0.1") == "127.0.0.1"
    assert store_address(two, "10.0.0.1") == "10.0.0.1"


def test_an_interface_that_the_node_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"GLOO_SOCKET_IFNAME": "eth1", "RANK": "1"}
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert child_environment(given) == {**os.environ, **given}
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert child_environment(given)["GLOO_SOCKET_IFNAME"] == "ib0"
    assert child_environment(given)["RANK"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="the interfaces of Linux")
def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") is None


def test_a_lost_rank_is_reported_to_the_part_that_runs() -> None:
    """What the rank itself has said is kept."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = TorchrunJob(0, 3, 0, 3, "127.0.0.1", store.port, 0)
    assert not job.report_exit(1, "was killed")
    job.store().add("parts", 2)
    job.store("1/").set("exited/2", "ended with an error: its own")
    assert job.report_exit(1, "was killed")
    assert job.report_exit(2, "was killed")
    assert job.store("1/").get("exited/1") == b"was killed"
    assert job.store("1/").get("exited/2") == b"ended with an error: its own"
    del store


# --- the process of a rank --------------------------------------------------------------------------------------------


@pytest.fixture
def rank() -> Iterator[RankProcess]:
    process = RankProcess("STARTED_BY")
    yield process
    process.end()


def output(rank: RankProcess) -> tuple[list[Line], int]:
    """All lines and the exit code."""
    lines: list[Line] = []
    while True:
        more, code = rank.poll(30.0)
        lines += more
        if code is not None:
            return lines, code
        assert more, "no output within 30 s"


def test_output_and_exit_code(rank: RankProcess, tmp_path: Path) -> None:
    code = (
        "import os, sys; print(os.getcwd(), os.environ['A'], os.environ['STARTED_BY']); sys.stderr.write('x'); exit(3)"
    )
    rank.start(["-c", code], {"A": "a"}, str(tmp_path))
    lines, ended = output(rank)
    assert sorted(lines) == [("err", "x"), ("out", f"{tmp_path} a {os.getpid()}")]
    assert ended == 3
    assert rank.poll(0.0) == ([], 3)
    rank.signal(signal.SIGTERM)  # of a process that has ended: nothing


def test_a_signal_and_the_end_of_what_it_has_started(rank: RankProcess, tmp_path: Path) -> None:
    child = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    rank.start(["-c", child], {}, str(tmp_path))
    ((_, pid),), code = rank.poll(30.0)
    assert code is None
    rank.end()
    assert output(rank) == ([], -signal.SIGKILL)
    until(lambda: not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == "zombie", "not ended")


def test_a_process_that_cannot_start_is_an_error(rank: RankProcess, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        rank.start(["-c", ""], {}, str(tmp_path / "none"))
    rank.end()


def test_a_store_listens_on_the_given_address_only(rank: RankProcess) -> None:
    port = rank.serve("127.0.0.1")
    listening = {each.laddr for each in psutil.Process().net_connections() if each.status == "LISTEN"}
    assert [address.ip for address in listening if address.port == port] == ["127.0.0.1"]
    client = TCPStore("127.0.0.1", port, is_master=False)
    client.set("a", "b")
    assert client.get("a") == b"b"


def test_folders_of_another_disk_are_not_seen(rank: RankProcess, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    marker.write_text("mine")
    assert rank.sees(str(marker), "mine", str(tmp_path)) is None
    assert rank.sees(str(marker), "mine", str(tmp_path / "none")) == str(tmp_path / "none")


def test_a_file_that_does_not_appear_is_not_waited_for_long(
    rank: RankProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bepa_torchrl.scale.sharding.placement.rank_process._VISIBLE", 0.1)
    assert rank.sees(str(tmp_path / "marker"), "mine", str(tmp_path)) == str(tmp_path)
