"""Real desktops on the nodes of a Ray cluster: those of a killed node are cleaned up, and the run loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from lamp_groups import lock_step
from polling import until
from processes import described, names, runs
from ray.cluster_utils import Cluster
from ray_runs import Run, kill_9, processes, wait_for

from bepa_torchrl.scale.rollouts.pool.env_worker_pool import cluster_nodes
from bepa_torchrl.testing import summary
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.local.keeper import records
from osworld_gym.episode import EpisodeOptions
from osworld_gym.types import Action
from osworld_gym.vector import DesktopVector

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
CLEAN_SECONDS = 60.0  #: a loaded machine; Ray ends the worker at once, and the keeper its desktops within a second
LAMP = "/tmp/lamp"


class LampInside(LocalDesktop):
    """A real desktop with a lamp, a file inside that every click switches on: lamp tasks end as on a simulated one."""

    def __init__(self) -> None:
        super().__init__(320, 240, template=None)

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.write_file(LAMP, b"off")

    def perform(self, actions: Sequence[Action]) -> None:
        super().perform(actions)
        if any(action.kind == "click" for action in actions):
            self.write_file(LAMP, b"on")

    def read_file(self, path: str) -> bytes:
        return super().read_file(LAMP if path == "/lamp.json" else path)


def real_vector() -> DesktopVector:
    return DesktopVector(LampInside, 1, EpisodeOptions(max_steps=5))


class Found(NamedTuple):
    """What a worker has on its machine: its keeper, all processes below it, the folder with its desktops' records."""

    keeper: psutil.Process
    processes: list[psutil.Process]
    folder: Path

    def gone(self) -> bool:
        return not any(map(runs, self.processes))


def found_below(worker: int) -> Found | None:
    """None until it has two desktops with everything that belongs to one."""
    below = names(worker)
    found = list(below.values())
    if found.count("Xvfb") < 2 or found.count("bwrap") < 2:
        return None
    children = described(worker, lambda process: " ".join(process.cmdline()), recursive=False)
    (keeper,) = (process for process, line in children.items() if "keeper" in line)
    return Found(keeper, list(below), records.owner_folder(worker))


def while_it_plays(run: Run, worker: int, kill: Callable[[Found], None]) -> Found:
    """Kills while the worker, the pool's first one, plays on two desktops."""
    wait_for(lambda: any(lease["worker"] == "worker0" for lease in run.collector.queue.describe()["leases"]))
    found: Found = wait_for(lambda: found_below(worker))
    kill(found)
    return found


@pytest.mark.parametrize(
    "everything",
    [
        pytest.param(False, id="its raylet", marks=pytest.mark.nightly),
        pytest.param(True, id="its raylet, worker and keeper"),
    ],
)
def test_desktops_of_a_killed_node_are_cleaned_up_and_the_run_goes_on(nodes: Cluster, everything: bool) -> None:
    """They end, whether by the keeper or with it, and the next worker that starts there removes what is left of them.

    Ray's worker may kill its child processes, the keeper among them, when it notices that its raylet has ended.
    """
    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 << 20, "resources": {"desktops": 2}}
    first = nodes.add_node(**options)
    wait_for(lambda: any(cluster_nodes().values()))
    run = Run(staleness=0, workers=None, make_vector=real_vector)
    rollouts, batches = iter(run.collector), []

    def kill(found: Found) -> None:
        if everything:
            found.keeper.send_signal(signal.SIGSTOP)  # it is not to see the worker's end
            os.kill(worker, signal.SIGKILL)
        nodes.remove_node(first, allow_graceful=False)  # kill -9 of its raylet
        if everything:
            found.keeper.kill()

    try:
        batches.append(summary(next(rollouts)))
        (worker,) = processes(run.pool)
        nodes.add_node(**options)
        wait_for(lambda: len([each for each in list(run.pool.workers.values()) if each.ready]) == 2)
        with ThreadPoolExecutor(1) as other:
            killed = other.submit(while_it_plays, run, worker, kill)
            batches.append(summary(next(rollouts)))
            found = killed.result()
        until(found.gone, "processes of its desktops end", CLEAN_SECONDS)
        wait_for(lambda: "worker0" not in run.pool.workers)
        batches.append(summary(next(rollouts)))
        kill_9(run.pool)  # another one starts on this machine
        batches.append(summary(next(rollouts)))
        assert not found.folder.exists()
        assert batches == lock_step(len(batches))
    finally:
        run.end()
