"""Two trainer ranks and two rollout services on Ray: the run of one process, also if they or the queue are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from compared_runs import METHOD, assert_same_record, assert_same_weights, trained_episodes, updates
from polling import until
from processes import command_lines
from ray_heads import loaded_machine
from repository import ROOT
from smallest_run import TWO_RANKS, TWO_STEPS, smallest_run

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.run_record import read_lines

pytestmark = [pytest.mark.ray, pytest.mark.timeout(3000), pytest.mark.filterwarnings("default")]
MAIN = "import sys; from bepa_torchrl.commands.train import main; sys.exit(main(sys.argv[1:]))"
DEADLINE = 900.0
ASYNC = ("collect.mode=async", "eval.every=0", "record.every=1", "record.images=false", "train.iterations=3")
RAY = ("cluster.address=local", "cluster.workers=2", "cluster.replicas=2", "env.desktops=4", *TWO_RANKS)


def iterations_of(run: Path) -> int:
    """Iterations that are recorded."""
    path = run / METHOD / "iterations.jsonl"
    return max((line["iteration"] for line in read_lines(path)), default=0) if path.exists() else 0


def processes(launcher: subprocess.Popen[str], words: str) -> list[psutil.Process]:
    """The program's processes that have this in their command line and have not ended."""
    return [child for child, line in command_lines(launcher.pid).items() if words in line]


def test_a_service_the_queue_and_a_rank_are_killed_and_each_group_is_trained_once(tmp_path: Path) -> None:
    """A service and the queue are killed after the first iteration, rank 1 after the second; ``restarts`` goes on."""
    settings = [*smallest_run(tmp_path / "p"), *TWO_STEPS, *ASYNC, f"runs={tmp_path}"]
    assert main([*settings, "name=alone"]) == 0
    environment = os.environ | loaded_machine() | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MAIN, *settings, *RAY, "name=x", "restarts=2"]
    run, log = tmp_path / "x", tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=environment) as launcher:

        def reached(iteration: int) -> bool:
            assert launcher.poll() is None, log.read_text()
            return iterations_of(run) >= iteration

        until(lambda: reached(1), "no iteration", DEADLINE)
        services = processes(launcher, "ray::_Service")
        assert len(services) == 2
        services[0].send_signal(signal.SIGKILL)
        (queue,) = processes(launcher, "ray::_Queue")
        queue.send_signal(signal.SIGKILL)
        until(lambda: reached(2), "no iteration after the kill of a service and the queue", DEADLINE)
        (follower,) = processes(launcher, "bepa_torchrl.experiment.ranks")
        follower.send_signal(signal.SIGKILL)
        assert launcher.wait(DEADLINE) == 0, log.read_text()
    text = log.read_text()
    assert "the queue was started again" in text + (run / METHOD / "log.txt").read_text()
    assert "rank 1 of 2 ended by signal SIGKILL" in text
    assert "restart 1 of 2 in 10 s, from what is saved" in text
    assert_same_record(updates(run), updates(tmp_path / "alone"))
    assert_same_weights(*(each / METHOD / "policy" / "model.safetensors" for each in (run, tmp_path / "alone")))
    episodes = trained_episodes(run / METHOD)
    assert episodes == trained_episodes(tmp_path / "alone" / METHOD)
    assert set(episodes.values()) == {1}
