"""``train.ranks`` with ``collect.mode=async``: the run of one process, whoever plays the rollouts; ranks are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from async_runs import rollout_side
from built_in_engine import TOKEN, served
from compared_runs import METHOD, assert_same_record, assert_same_weights, trained_episodes, updates
from listening_ports import free_ports
from polling import until
from processes import command_lines
from run_metrics import comparable
from smallest_run import TWO_RANKS, TWO_STEPS, smallest_run

from bepa_torchrl.commands.train import main
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.failures import INFRASTRUCTURE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MAIN = "import sys; from bepa_torchrl.commands.train import main; sys.exit(main(sys.argv[1:]))"
DEADLINE = 600.0
ASYNC = ("collect.mode=async", "eval.every=0", "record.every=1", "record.images=false")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*smallest_run(tmp_path_factory.mktemp("p")), *TWO_STEPS, *ASYNC]


@pytest.fixture(scope="module")
def alone(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three iterations in one process."""
    runs = tmp_path_factory.mktemp("runs")
    assert main([*settings, f"runs={runs}", "name=x", "train.iterations=3"]) == 0
    return runs / "x"


def assert_same_run(found: Path, expected: Path) -> None:
    """Record, weights and episodes, each of which was trained once."""
    assert_same_record(updates(found), updates(expected))
    assert_same_weights(*(run / METHOD / "policy" / "model.safetensors" for run in (found, expected)))
    episodes = trained_episodes(found / METHOD)
    assert episodes == trained_episodes(expected / METHOD)
    assert set(episodes.values()) == {1}


def kill_rank_1(launcher: subprocess.Popen[Any], run: Path, iteration: int) -> psutil.Process:
    """Kills rank 1 as soon as the iteration is recorded; returns rank 0."""
    record = run / METHOD / "iterations.jsonl"

    def recorded() -> bool:
        assert launcher.poll() is None, "the run has ended"
        return record.exists() and any(line["iteration"] >= iteration for line in read_lines(record))

    until(recorded, f"no iteration {iteration}", DEADLINE)
    every = command_lines(launcher.pid)
    (follower,) = (child for child, line in every.items() if "bepa_torchrl.experiment.ranks" in line)
    (leader,) = (child for child, line in every.items() if "bepa_torchrl.experiment.method_process" in line)
    follower.send_signal(signal.SIGKILL)
    return leader


def test_two_ranks_equal_one_process(settings: list[str], alone: Path, tmp_path: Path) -> None:
    assert main([*settings, f"runs={tmp_path}", "name=x", "train.iterations=3", *TWO_RANKS]) == 0
    lines = updates(tmp_path / "x")
    assert all(line["train/optimizer_steps"] == 2 and line["cache/injected"] > 0 for line in lines)
    assert all(line["collect/staleness_max"] == line["collect/version_lag_max"] == 0 for line in lines)
    assert_same_run(tmp_path / "x", alone)


@pytest.mark.nightly
def test_adapters_on_two_ranks_equal_one_process(settings: list[str], tmp_path: Path) -> None:
    """The rollout service gets the whole weights, in which the adapters are merged."""
    run = [*settings, "policy.lora.rank=4", "optimizer.lr=1e-3", f"runs={tmp_path}", "train.iterations=2"]
    for ranks, name in ((1, "one"), (2, "two")):
        assert main([*run, f"name={name}", f"train.ranks={ranks}"]) == 0
    assert_same_run(tmp_path / "two", tmp_path / "one")


def test_one_process_then_two_ranks_then_one_equal_one_process(
    settings: list[str], alone: Path, tmp_path: Path
) -> None:
    assert main([*settings, f"runs={tmp_path}", "name=x", "train.iterations=1"]) == 0
    for iterations, ranks in ((2, 2), (3, 1)):
        resume = ["resume=true", "name=x", f"runs={tmp_path}"]
        assert main([*resume, f"train.iterations={iterations}", f"train.ranks={ranks}"]) == 0
    assert_same_run(tmp_path / "x", alone)


def test_evaluations_and_self_rollouts_on_two_ranks(settings: list[str], tmp_path: Path) -> None:
    """With stale rollouts: services play the evaluations, rank 0's copy scores the cache and self-rolls."""
    more = ("algo=bepa", "collect.max_staleness=1", "eval.every=1", "expert.reroll_every=2", *TWO_RANKS)
    run = [*settings, *more, "expert.seed_from_converted=true", f"runs={tmp_path}", "name=x"]
    assert main([*run, "train.iterations=3"]) == 0
    record = read_lines(tmp_path / "x" / "bepa" / "iterations.jsonl")
    lines = {line["iteration"]: line for line in record if line["phase"] == "rl"}
    assert list(lines) == [1, 2, 3]
    assert all(line["collect/staleness_max"] <= 1 for line in lines.values())
    assert [n for n, line in lines.items() if "cache/js" in line] == [1, 2]
    assert [n for n, line in lines.items() if "reroll/episodes" in line] == [2]
    evaluations = {line["iteration"]: line for line in record if line["phase"] == "eval"}
    assert evaluations.keys() == {1, 2}
    assert {line["eval/episodes"] for line in evaluations.values()} == {3.0}
    assert set(trained_episodes(tmp_path / "x" / "bepa").values()) == {1}


@pytest.mark.nightly
def test_a_killed_rank_ends_the_run_and_a_resume_goes_on(settings: list[str], alone: Path, tmp_path: Path) -> None:
    arguments = [*settings, f"runs={tmp_path}", "name=x", "train.iterations=3", *TWO_RANKS]
    with subprocess.Popen([sys.executable, "-c", MAIN, *arguments], stderr=subprocess.PIPE, text=True) as launcher:
        leader = kill_rank_1(launcher, tmp_path / "x", 1)
        _, error = launcher.communicate(timeout=DEADLINE)
    assert launcher.returncode == INFRASTRUCTURE, error
    line = error.strip().splitlines()[-1]
    assert line.startswith(f"{METHOD}: rank 1 of 2 ended by signal SIGKILL")
    assert "go on with resume=true" in line
    assert not leader.is_running()
    assert main(["resume=true", "name=x", f"runs={tmp_path}"]) == 0
    assert_same_run(tmp_path / "x", alone)


def test_a_run_goes_on_by_itself_after_a_rank_was_killed(settings: list[str], alone: Path, tmp_path: Path) -> None:
    """``restarts``; the second kill, in the restarted run, ends it, since no restart is left."""
    restarts = ["train.iterations=3", *TWO_RANKS, "restarts=1"]
    arguments = [*settings, f"runs={tmp_path}", "name=x", *restarts]
    log = tmp_path / "log"
    with log.open("w") as output:
        launcher = subprocess.Popen([sys.executable, "-c", MAIN, *arguments], stdout=output, stderr=output)
        try:
            for iteration in (1, 2):
                kill_rank_1(launcher, tmp_path / "x", iteration)
            assert launcher.wait(DEADLINE) == INFRASTRUCTURE, log.read_text()
        finally:
            launcher.kill()
            launcher.wait()
    assert log.read_text().count("rank 1 of 2 ended by signal SIGKILL") == 2
    assert log.read_text().count("restart 1 of 1 in 10 s, from what is saved") == 1
    assert main(["resume=true", "name=x", f"runs={tmp_path}"]) == 0
    assert_same_run(tmp_path / "x", alone)


def test_two_ranks_with_another_cluster_equal_one_process(settings: list[str], alone: Path, tmp_path: Path) -> None:
    """``cluster.listen``: the weights of both ranks go through the connection."""
    token, log = tmp_path / "token", tmp_path / "log"
    token.write_text("a token of this test")
    (port,) = free_ports(1)
    listens = (f"cluster.listen=127.0.0.1:{port}", f"cluster.token_file={token}")
    run = [*settings, *listens, f"runs={tmp_path}", "name=x", "train.iterations=3", *TWO_RANKS]
    with rollout_side(port, token, log, "env.desktops=2") as side:
        assert main(run) == 0
        assert side.wait(DEADLINE) == 0, log.read_text()
    assert "weights of version 4" in log.read_text()
    assert_same_run(tmp_path / "x", alone)


@pytest.mark.nightly
def test_two_ranks_with_an_engine_equal_one_process(
    settings: list[str], alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine, a stand-in by HTTP, gets each version of the weights, and is verified to use them."""
    monkeypatch.setenv("BEPA_ENGINE_TOKEN", TOKEN.decode())
    engine = ("policy.rollout=vllm", "train.old_log_probs=all")
    run = [*settings, f"runs={tmp_path}", "name=x", "train.iterations=3", *TWO_RANKS, *engine]
    with served(tmp_path / "weights") as server:
        assert main([*run, f"policy.engine.url='{server.url}'"]) == 0
    for found, expected in zip(updates(tmp_path / "x"), updates(alone), strict=True):
        same = comparable(found).keys() & comparable(expected).keys()
        assert same >= {"cache/injected", "collect/success", "train/grad_norm"}
        assert found["engine/probe_error_max"] < 1e-4
        assert {key: found[key] for key in same} == pytest.approx(
            {key: expected[key] for key in same}, rel=1e-3, abs=1e-4
        )
