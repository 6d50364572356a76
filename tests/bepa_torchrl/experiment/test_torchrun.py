"""A run that torchrun starts equals one that starts its ranks itself; a lost rank ends it with a clear error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from listening_ports import free_ports
from processes import described
from smallest_run import RANK_TIMEOUT, TWO_STEPS, smallest_run
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.config import ConfigError
from bepa_torchrl.experiment.launcher import overrides_on_torchrun
from bepa_torchrl.experiment.ranks import follow_torchrun
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.scale.sharding.torchrun import TorchrunFollowers, TorchrunJob, torchrun_job

DEADLINE = 400.0
TRAIN = ("-m", "bepa_torchrl", "train")
JOB = TorchrunJob(rank=0, ranks=2, local_rank=0, local_ranks=2, host="localhost", port=1, attempt=0)
ENVIRONMENT = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29500",
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*smallest_run(tmp_path_factory.mktemp("p")), *TWO_STEPS]


@contextmanager
def torchrun(*arguments: str, log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Torchrun's agent; it and its processes have ended afterwards."""
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    with log.open("wb") as output:
        agent = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | environment)
        try:
            yield agent
        finally:
            every = [agent.pid, *(child.pid for child in descendants(agent.pid))]
            for pid in every:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            agent.wait()


def descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def ranks(agent: subprocess.Popen[bytes]) -> dict[str, psutil.Process]:
    """The processes that an agent has started, by their ranks."""
    children = described(agent.pid, psutil.Process.environ, recursive=False)
    return {environment["RANK"]: child for child, environment in children.items() if "RANK" in environment}


def rank_of(agent: subprocess.Popen[bytes], rank: int) -> psutil.Process:
    """The process that an agent has started for a rank."""
    return ranks(agent)[str(rank)]


def has_rank(agent: subprocess.Popen[bytes], rank: int) -> bool:
    return str(rank) in ranks(agent)


def ends(agent: subprocess.Popen[bytes], log: Path) -> int:
    """The agent's exit code."""
    try:
        return agent.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        raise AssertionError(log.read_text()) from None


def await_iteration(run: Path, agents: list[subprocess.Popen[bytes]], log: Path) -> None:
    """Returns when the run's first iteration is recorded."""
    record, end = run / "level2" / "iterations.jsonl", time.monotonic() + DEADLINE
    while not (record.exists() and any(line["iteration"] == 1 for line in read_lines(record))):
        assert all(agent.poll() is None for agent in agents), log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def lines_of(run: Path, method: str = "level2") -> list[dict[str, Any]]:
    return [line for line in read_lines(run / method / "iterations.jsonl") if line["phase"] == "rl"]


def assert_same_run(found: Path, expected: Path, method: str = "level2") -> None:
    """Losses, gradient norms and weights to 1e-5."""
    pairs = list(zip(lines_of(found, method), lines_of(expected, method), strict=True))
    assert pairs
    for ours, theirs in pairs:
        for name in ("train/loss", "train/grad_norm", "train/optimizer_steps"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5), name
    policies = (load_policy(run / method / "policy").parameters() for run in (found, expected))
    assert max(float((ours - theirs).detach().abs().max()) for ours, theirs in zip(*policies, strict=True)) < 1e-5


def one_machine(*arguments: str) -> tuple[str, ...]:
    return ("--standalone", "--nproc-per-node=2", *TRAIN, *arguments)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_torchrun_equals_ranks_that_the_run_starts_and_a_killed_rank_is_resumable(
    settings: list[str], tmp_path: Path
) -> None:
    """Rank 1 is killed after the first iteration of the run by torchrun, which is then resumed by torchrun."""
    run = [*settings, RANK_TIMEOUT, f"runs={tmp_path}", "train.iterations=3"]
    assert main([*run, "name=own", "train.ranks=2"]) == 0
    log = tmp_path / "log"
    with torchrun(*one_machine(*run, "name=x"), log=log) as agent:
        await_iteration(tmp_path / "x", [agent], log)
        rank_of(agent, 1).kill()
        assert ends(agent, log) != 0
    text = log.read_text()
    assert "bepa train: ended by torchrun, which does so if another rank has exited" in text or (
        "go on with resume=true, from the newest checkpoint" in text
    )
    with torchrun(*one_machine("resume=true", "name=x", f"runs={tmp_path}"), log=log) as agent:
        assert ends(agent, log) == 0, log.read_text()
    assert_same_run(tmp_path / "x", tmp_path / "own")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ranks_that_torchrun_starts_again_go_on_with_asynchronous_rollouts(settings: list[str], tmp_path: Path) -> None:
    """Rank 1 is killed after the first iteration; the run is resumed without a further command."""
    run = [*settings, f"runs={tmp_path}", "train.iterations=3", "collect.mode=async", "eval.every=0"]
    assert main([*run, "name=own"]) == 0
    log = tmp_path / "log"
    again = ("--standalone", "--nproc-per-node=2", "--max-restarts=1")
    with torchrun(*again, *TRAIN, *run, RANK_TIMEOUT, "name=x", log=log) as agent:
        await_iteration(tmp_path / "x", [agent], log)
        rank_of(agent, 1).kill()
        assert ends(agent, log) == 0, log.read_text()
    assert_same_run(tmp_path / "x", tmp_path / "own")


@pytest.fixture
def two_machines(tmp_path: Path) -> Callable[..., tuple[tuple[str, ...], Path]]:
    """Arguments of torchrun and the log for one of two agents, each with one process, as on two machines."""
    (port,) = free_ports(1)
    rendezvous = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=x", "--local-addr=127.0.0.1")

    def of(number: int, *arguments: str, rendezvous_on: int = 0) -> tuple[tuple[str, ...], Path]:
        host = f"--rdzv-conf=is_host={int(number == rendezvous_on)}"
        machine = ("--nnodes=2", "--nproc-per-node=1", *rendezvous, host)
        return (*machine, *TRAIN, *arguments), tmp_path / f"log-{number}"

    return of


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_two_methods_on_two_machines(settings: list[str], tmp_path: Path, two_machines: Any) -> None:
    run = [
        *settings,
        RANK_TIMEOUT,
        "compare=[luffy]",
        "collect.group_size=3",
        "processes=1",
        f"runs={tmp_path}",
        "train.iterations=1",
    ]
    assert main([*run, "name=own", "train.ranks=2"]) == 0
    with ExitStack() as stack:
        agents = {}
        for number in (0, 1):
            arguments, log = two_machines(number, *run, "name=x")
            agents[log] = stack.enter_context(torchrun(*arguments, log=log, GLOO_SOCKET_IFNAME="lo"))
        for log, agent in agents.items():
            assert ends(agent, log) == 0, log.read_text()
    for method in ("level2", "luffy"):
        assert_same_run(tmp_path / "x", tmp_path / "own", method)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rendezvous_on", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_rank_that_is_lost_on_another_machine_ends_the_run(
    settings: list[str], tmp_path: Path, two_machines: Any, rendezvous_on: int
) -> None:
    """Rank 0 notices it; or its torchrun does, if torchrun's rendezvous was on the lost machine."""
    run = [*settings, f"runs={tmp_path}", "name=x", "train.iterations=500", "train.rank_timeout=60"]
    with ExitStack() as stack:
        agents, logs = [], []
        for number in (0, 1):
            arguments, log = two_machines(number, *run, rendezvous_on=rendezvous_on)
            agents.append(stack.enter_context(torchrun(*arguments, log=log, GLOO_SOCKET_IFNAME="lo")))
            logs.append(log)
        await_iteration(tmp_path / "x", agents, logs[0])
        (leading,) = (i for i, agent in enumerate(agents) if has_rank(agent, 0))
        rank_of(agents[1 - leading], 1).kill()
        assert ends(agents[leading], logs[leading]) != 0
    lines = [line for line in logs[leading].read_text().splitlines() if line.startswith(("level2: ", "bepa train: "))]
    ways = ["level2: another rank has exited", "level2: rank 1 of 2 has not answered"]
    if rendezvous_on != leading:
        ways.append("bepa train: ended by torchrun, which does so if another rank has exited")
    assert any(line.startswith(tuple(ways)) for line in lines), logs[leading].read_text()
    assert all("resume=true" in line for line in lines), lines  # in words, or in the command that continues the run


def test_a_rank_that_does_not_see_the_runs_folder_says_so(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job, before = replace(JOB, host="127.0.0.1", port=store.port), signal.getsignal(signal.SIGINT)
    part = {"folder": str(tmp_path / "level2"), "settings": "sha256 of rank 0's", "timeout": 30.0}
    leader = TorchrunFollowers(job, part, name="level2", timeout=30.0)
    try:
        with pytest.raises(ConfigError, match=r"level2 of rank 0 is not this machine's \(rank 1\); set runs="):
            follow_torchrun(replace(job, rank=1))
        assert "rank 1 of 2 ended with an error: " in str(leader.exited(30.0))
    finally:
        leader.close(kill=True)
        signal.signal(signal.SIGINT, before)


def test_the_number_of_ranks_is_torchruns() -> None:
    assert overrides_on_torchrun(["name=x"], 2) == ["name=x", "train.ranks=2"]
    assert overrides_on_torchrun(["train.ranks=2"], 2) == ["train.ranks=2"]
    with pytest.raises(ConfigError, match=r"train\.ranks=3, but torchrun has started 2 processes; leave"):
        overrides_on_torchrun(["train.ranks=3"], 2)
    with pytest.raises(ConfigError, match=r"train=\{ranks: 3\}, but torchrun has started 2 processes; leave"):
        overrides_on_torchrun(["train={ranks: 3}"], 2)


def test_the_job_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert torchrun_job() is None
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    expected = TorchrunJob(rank=3, ranks=4, local_rank=1, local_ranks=2, host="node-1", port=29500, attempt=2)
    assert torchrun_job() == expected
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    with pytest.raises(ValueError, match="torchrun gives its processes no store; start it with --rdzv-backend=c10d"):
        torchrun_job()
