"""``cluster.trainer=ray``: runs on two ranks that Ray places equal runs that start them, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from compared_runs import METHOD, assert_same_record, assert_same_weights, iterations, trained_episodes, updates
from polling import until
from ray_heads import loaded_machine, ray_head
from repository import ROOT
from smallest_run import TWO_RANKS, TWO_STEPS, smallest_run

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.failures import INTERRUPTED

pytestmark = [pytest.mark.ray, pytest.mark.timeout(3000), pytest.mark.filterwarnings("default")]
#: a shell starts jobs in the background with SIGINT ignored, which these tests send
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from bepa_torchrl.commands.train import main
sys.exit(main(sys.argv[1:]))
"""
DEADLINE = 900.0
ON_RAY = ("cluster.trainer=ray", *TWO_RANKS, "cluster.cpus_per_rank=0.5")
ASYNC = ("collect.mode=async", "eval.every=0", "record.every=1", "record.images=false", "train.iterations=3")
LEFT = """
import json, sys, ray
from ray.util.placement_group import placement_group_table
from bepa_torchrl.scale.rollouts.ray_cluster import connect
connect(sys.argv[1], log_to_driver=False)  # sends this machine's token, if it has one
groups = [each["state"] for each in placement_group_table().values() if each["state"] != "REMOVED"]
free, total = ray.available_resources().get("CPU"), ray.cluster_resources()["CPU"]
print(json.dumps([groups, free == total]))
"""


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    return [*smallest_run(tmp_path / "p"), *TWO_STEPS, f"runs={tmp_path}"]


@contextmanager
def started(log: Path, *settings: str) -> Iterator[subprocess.Popen[str]]:
    """``bepa train`` in a process of its own, which has ended afterwards."""
    environment = os.environ | loaded_machine() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MAIN, *settings]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as program:
        try:
            yield program
        finally:
            program.kill()


def await_iteration(run: Path, iteration: int, program: subprocess.Popen[str], log: Path) -> None:
    """Returns when so many iterations are recorded."""
    record = run / METHOD / "iterations.jsonl"

    def reached() -> bool:
        assert program.poll() is None, log.read_text()
        return record.exists() and max((line["iteration"] for line in read_lines(record)), default=0) >= iteration

    until(reached, "no iteration", DEADLINE)


def rank_processes(run: str) -> dict[int, psutil.Process]:
    """The processes of a run that Ray's actors have started, by rank."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            if f"name={run}" in process.cmdline() and "BEPA_RAY_CLUSTER" in (environment := process.environ()):
                found[int(environment["RANK"])] = process
        except psutil.Error:
            continue
    return found


SERVICES = ("cluster.replicas=3", "cluster.gpus_per_replica=0.5")


@pytest.mark.parametrize(
    ("changes", "services", "total"),
    [
        (["policy.device=cuda"], 0, {"CPU": 2.0, "GPU": 4.0}),
        (["policy.device=cpu"], 0, {"CPU": 2.0}),
        (["policy.device=cuda", "collect.mode=async", *SERVICES], 3, {"CPU": 2.0, "GPU": 5.5}),
        (["policy.device=cpu", "collect.mode=async", *SERVICES], 3, {"CPU": 2.0, "GPU": 1.5}),
        (["policy.device=cuda", "collect.mode=async", "cluster.listen=0.0.0.0:1"], 0, {"CPU": 2.0, "GPU": 4.0}),
    ],
)
def test_the_cluster_is_asked_for_what_ranks_and_services_of_this_cluster_need(
    changes: list[str], services: int, total: dict[str, float]
) -> None:
    from bepa_torchrl.experiment.ray_driver import needs_of  # without Ray this module is collected, too

    needs = needs_of(load_config([*ON_RAY, "cluster.address=auto", "compare=[]", "train.ranks=4", *changes]))
    assert (needs.ranks, needs.services) == (4, services)
    assert needs.total() == total


def test_ranks_that_ray_places_equal_those_that_the_run_starts(settings: list[str], tmp_path: Path) -> None:
    """Synchronous; the driver imports neither torch nor the policy, and shows rank 0's progress."""
    run = [*settings, "train.iterations=2"]
    assert main([*run, "name=own", *TWO_RANKS]) == 0
    log = tmp_path / "log"
    with started(log, *run, *ON_RAY, "cluster.address=local", "name=x") as program:
        assert program.wait(DEADLINE) == 0, log.read_text()
    text = log.read_text()
    assert "placed 2 trainer ranks: 2 on " in text
    assert f"{METHOD} 2/2: rollouts" in text
    assert_same_record(*(iterations(tmp_path / name) for name in ("x", "own")))
    assert_same_weights(*(tmp_path / name / METHOD / "policy" / "model.safetensors" for name in ("x", "own")))


def test_a_killed_rank_is_placed_again_and_each_group_is_trained_once(settings: list[str], tmp_path: Path) -> None:
    """Asynchronous, with workers and a service in the same cluster; ``restarts`` goes on from the checkpoint."""
    run = [*settings, *ASYNC, "train.save_every=1"]
    assert main([*run, "name=alone"]) == 0
    log = tmp_path / "log"
    ray = ("cluster.address=local", "cluster.workers=2", "cluster.replicas=1", "env.desktops=4")
    with started(log, *run, *ON_RAY, *ray, "name=x", "restarts=1") as program:
        await_iteration(tmp_path / "x", 1, program, log)
        rank_processes("x")[1].send_signal(signal.SIGKILL)
        assert program.wait(DEADLINE) == 0, log.read_text()
    text = log.read_text()
    assert "bepa train: rank 1 of 2 ended by signal SIGKILL" in text
    assert "restart 1 of 1 in 10 s, from what is saved" in text
    assert text.count("placed 2 trainer ranks") == 2
    assert_same_record(updates(tmp_path / "x"), updates(tmp_path / "alone"))
    assert_same_weights(*(tmp_path / name / METHOD / "policy" / "model.safetensors" for name in ("x", "alone")))
    episodes = trained_episodes(tmp_path / "x" / METHOD)
    assert episodes == trained_episodes(tmp_path / "alone" / METHOD)
    assert set(episodes.values()) == {1}


def test_an_interrupted_run_leaves_nothing_in_the_cluster_and_goes_on(settings: list[str], tmp_path: Path) -> None:
    """By SIGINT; resumed by ``resume=true`` alone, which finds in the run's folder where its ranks are."""
    log = tmp_path / "log"
    with ray_head(range(20200, 20300)) as address:
        run = [*settings, *ON_RAY, f"cluster.address={address}", "name=x", "train.iterations=50", "train.save_every=1"]
        with started(log, *run) as program:
            await_iteration(tmp_path / "x", 1, program, log)
            program.send_signal(signal.SIGINT)
            assert program.wait(DEADLINE) == INTERRUPTED, log.read_text()
        assert "bepa train: interrupted; continue with: bepa train name=x resume=true" in log.read_text()
        assert not rank_processes("x")
        environment = os.environ | {"PYTHONPATH": str(ROOT)}

        def left() -> str:
            command = [sys.executable, "-c", LEFT, address]
            return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

        until(lambda: left().endswith("[[], true]"), "something is left in the cluster")
        done = max(line["iteration"] for line in read_lines(tmp_path / "x" / METHOD / "iterations.jsonl"))
        resume = ["resume=true", "name=x", f"runs={tmp_path}", f"train.iterations={done + 1}"]
        with started(log, *resume) as program:
            assert program.wait(DEADLINE) == 0, log.read_text()
    assert [line["iteration"] for line in updates(tmp_path / "x")] == list(range(1, done + 2))


def test_a_cluster_without_room_ends_the_run_before_anything_is_prepared(settings: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    wanted = ("cluster.trainer=ray", "train.ranks=2", "cluster.cpus_per_rank=1000", "cluster.place_timeout=2")
    with started(log, *settings, *wanted, "cluster.address=local", "name=x") as program:
        assert program.wait(DEADLINE) == 3, log.read_text()
    (line,) = (line for line in log.read_text().splitlines() if line.startswith("bepa train: "))
    assert "had no room within 2 s for 2 trainer ranks with 1000 CPU each: together 2000 CPU; it has " in line
    assert line.endswith("(cluster.place_timeout waits for them)")
    assert not (tmp_path / "x").exists()
