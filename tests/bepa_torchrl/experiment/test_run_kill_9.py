"""kill -9 of any one process of a run on Ray, at random moments: every group is trained once, and the run goes on.

The run has two trainer ranks, two rollout services and two workers.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from ray_heads import loaded_machine

from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import small_checkpoint

ROOT = Path(__file__).parents[3]
#: a shell starts jobs in the background with SIGINT ignored, which these tests send
MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from bepa_torchrl.commands.train import main
sys.exit(main(sys.argv[1:]))
"""
DEADLINE = 600.0
GROUPS, EVAL_EVERY, METHOD = 2, 4, "level2"
#: what the command line of each kind of process contains
PROCESSES = {
    "trainer": "method_process",
    "rank": "bepa_torchrl.experiment.ranks",
    "queue": "ray::_Queue",
    "worker": "ray::_Node",
    "replica": "ray::_Service",
    "node": "/raylet/raylet ",
    "head": "/gcs/gcs_server ",
}
#: after the kill of one of these the run ends, and is started again
ENDS = ("trainer", "rank", "node", "driver", "interrupt", "head")
#: of make test-ray, where test_run_ray_ranks.py kills a rank: each end costs the start of all processes
FIVE = ("trainer", "node", "queue", "worker", "replica")
#: of make nightly; the launcher is killed in the soak only
TEN = (*ENDS[:3], *["queue"] * 2, *["worker"] * 3, *["replica"] * 2)
#: and Ctrl-C
TEN_OF_THE_SOAK = (*ENDS[:5], "queue", *["worker"] * 3, *["replica"] * 2)
CODES = {"driver": -signal.SIGKILL, "interrupt": 130}  #: exit codes of the launcher; 3 otherwise
EARLY = 0.2  #: share of the kills that do not wait until the run goes on
REPORTS = ROOT / "build" / "soak"  #: of the soak: which process was killed when, and what was dropped and why
SETTINGS = (
    "experiment=smoke",
    f"algo={METHOD}",
    "compare=[]",
    "policy.max_new_tokens=8",
    "env.max_steps=1",
    "env.desktops=2",
    "env.train_limit=2",
    "env.held_out_limit=1",
    f"eval.every={EVAL_EVERY}",
    "eval.final_episodes=0",
    "record.every=1",
    "record.images=false",
    "train.iterations=100000",
    "collect.mode=async",
    "collect.max_staleness=1",
    "cluster.address=local",
    "cluster.workers=2",
    "cluster.replicas=2",
    "train.ranks=2",
    "train.rank_timeout=200",
)


class Kill(NamedTuple):
    """One kill: seconds since the start, the last iteration ``before`` it, and seconds until the run went on."""

    at: float
    kind: str
    process: int
    before: int
    early: bool
    went_on: float | None = None

    def __str__(self) -> str:
        end = "the run did not go on" if self.went_on is None else f"the run went on after {self.went_on:.1f} s"
        when = "while it started or recovered, " if self.early else ""
        return f"{self.at:7.1f} s: {self.kind} (process {self.process}), {when}after iteration {self.before}: {end}"


class Run:
    """A run whose processes are killed.

    Args:
        folder: parent of the run's folder, with the policy to start from.
    """

    def __init__(self, folder: Path) -> None:
        checkpoint = TransformersPolicy(small_checkpoint(), preset="compact").save(folder / "policy")
        self.place = (f"runs={folder / 'runs'}", "name=x")
        self.method = folder / "runs" / "x" / METHOD
        self.output = folder / "output.txt"
        self.kills: list[Kill] = []
        self.started = time.monotonic()
        self.launcher = self.start(*SETTINGS, f"policy.checkpoint={checkpoint}")

    def start(self, *overrides: str) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | loaded_machine() | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with self.output.open("ab") as output:
            command = [sys.executable, "-c", MAIN, *overrides, *self.place]
            return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """The first true result, while the launcher runs."""
        end = time.monotonic() + DEADLINE
        while not (found := what()):
            assert self.launcher.poll() is None, self.output.read_text()
            assert time.monotonic() < end, self.output.read_text()
            time.sleep(0.1)
        return found

    def iterations(self) -> int:
        path = self.method / "iterations.jsonl"
        lines = read_lines(path) if path.exists() else []
        return max((int(line["iteration"]) for line in lines if line["phase"] == "rl"), default=0)

    def progress(self, count: int) -> None:
        """Waits for ``count`` further iterations."""
        before = self.iterations()
        self.wait_for(lambda: self.iterations() >= before + count)

    def processes(self, kind: str) -> list[psutil.Process]:
        if kind in CODES:
            return [psutil.Process(self.launcher.pid)]
        found = []
        for process in psutil.Process(self.launcher.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if PROCESSES[kind] in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self, kind: str, rng: random.Random) -> None:
        """Kills a process of this kind at a random moment, and waits until the run goes on."""
        everything = self.strike(kind, rng)
        if kind in ENDS:
            self.end(kind, everything)
            self.launcher = self.start("resume=true")
        self.progress(1 if kind in ENDS else 3)
        self.goes_on()

    def finish(self, kind: str, rng: random.Random) -> int:
        """A last kill, after which the resumed run trains two more iterations and ends; returns their number."""
        self.end(kind, self.strike(kind, rng))
        last = self.iterations() + 2
        self.launcher = self.start("resume=true", f"train.iterations={last}")
        assert self.launcher.wait(DEADLINE) == 0, self.output.read_text()
        self.goes_on()
        return last

    def strike(self, kind: str, rng: random.Random) -> list[psutil.Process]:
        """Kills a process of this kind at a random moment; returns those that then ran."""
        early = bool(self.kills) and rng.random() < EARLY
        if not early:
            self.progress(1)
        time.sleep(rng.uniform(0.0, 3.0))
        self.wait_for(lambda: self.processes(kind))
        everything = [process for name in PROCESSES if name != "head" for process in self.processes(name)]
        killed, at = rng.choice(self.processes(kind)), time.monotonic()
        killed.send_signal(signal.SIGINT if kind == "interrupt" else signal.SIGKILL)
        self.kills.append(Kill(at - self.started, kind, killed.pid, self.iterations(), early))
        return everything

    def goes_on(self) -> None:
        """The run has gone on since the last kill."""
        last = self.kills[-1]
        self.kills[-1] = last._replace(went_on=time.monotonic() - self.started - last.at)

    def end(self, kind: str, everything: Sequence[psutil.Process]) -> None:
        """Waits for the end of the run and all its processes."""
        code = self.launcher.wait(DEADLINE)
        assert code == CODES.get(kind, 3), self.output.read_text()
        _, alive = psutil.wait_procs(everything, timeout=60.0)
        assert not alive, alive  # actors and node end with the trainer; helpers of Ray's own may take minutes

    def report(self) -> str:
        """Which process was killed when, and which groups or episodes were given up and why."""
        log = (self.method / "log.txt").read_text() if self.method.exists() else ""
        lost = re.findall(r"group \d+ (?:\(task .*is dropped|is trained without slot).*", log)
        kills = [f"{len(self.kills)} kills, {self.iterations()} iterations", *map(str, self.kills)]
        return "\n".join([*kills, f"{len(lost)} groups dropped or trained without an episode", *lost, ""])


def check(run: Run, last: int) -> None:
    """Every group is trained in one iteration, or has failed; every evaluation is reported once."""
    trained: dict[int, set[int]] = defaultdict(set)
    every = set()
    for line in read_lines(run.method / "episodes.jsonl"):
        every.add(line["group_id"])
        if line["trained"]:
            trained[line["group_id"]].add(line["iteration"])
        else:
            assert line["off_policy"] or line["failure"] or line["reward"] is not None
    assert all(len(iterations) == 1 for iterations in trained.values())
    by_iteration: dict[int, int] = defaultdict(int)
    for (iteration,) in trained.values():
        by_iteration[iteration] += 1
    assert by_iteration == dict.fromkeys(range(1, last + 1), GROUPS)
    log = (run.method / "log.txt").read_text()
    dropped = every - set(trained)
    assert all(f"group {group} (task" in log for group in dropped)  # with the reason
    assert every == set(range(GROUPS * last + len(dropped)))  # none is left out
    lines = read_lines(run.method / "iterations.jsonl")
    assert [line["iteration"] for line in lines if line["phase"] == "rl"] == list(range(1, last + 1))
    evaluations = sorted(line["iteration"] for line in lines if line["phase"] == "eval")
    assert evaluations == list(range(EVAL_EVERY, last, EVAL_EVERY))


def survive(folder: Path, kinds: Sequence[str], seed: int) -> str:
    """Kills processes of these kinds in random order, at last one whose kill ends the run, and returns the report."""
    rng = random.Random(seed)
    order = rng.sample(kinds, len(kinds))
    at_last = next(kind for kind in reversed(order) if kind in ENDS)
    order.remove(at_last)
    run = Run(folder)
    try:
        for kind in order:
            run.kill(kind, rng)
        check(run, run.finish(at_last, rng))
        return run.report()
    except BaseException as error:
        error.add_note(run.report())
        raise
    finally:
        with suppress(psutil.NoSuchProcess):
            left = psutil.Process(run.launcher.pid).children(recursive=True)
            run.launcher.kill()
            psutil.wait_procs(left, timeout=60.0)
        run.launcher.wait(60.0)


@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_a_kill_of_each_kind_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    survive(tmp_path, FIVE, seed=0)


@pytest.mark.ray
@pytest.mark.nightly
@pytest.mark.timeout(3600)  # eleven minutes on two cores that other jobs kept busy
def test_ten_kills_lose_nothing_and_repeat_nothing(tmp_path: Path) -> None:
    survive(tmp_path, TEN, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_kill_of_the_head_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """Ray ends the trainer's process only after it has waited a minute for the head."""
    pytest.importorskip("ray")
    survive(tmp_path, ["head", "worker"], seed=9)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(1, 6), ids=lambda part: f"part{part}")
def test_fifty_kills_lose_nothing_and_repeat_nothing(
    tmp_path: Path, part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five runs with ten kills and a Ctrl-C each, so that the fifty can be had in pieces (``-k part3``)."""
    pytest.importorskip("ray")
    report = survive(tmp_path, TEN_OF_THE_SOAK, seed=part)
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / f"kills_{part}.txt").write_text(report)
    with capsys.disabled():
        print(f"\npart {part} of 5: {report}", end="")
