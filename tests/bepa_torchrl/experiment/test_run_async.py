"""``collect.mode=async`` in a whole run: the synchronous run's results at staleness 0, real ages above it, resume."""

from __future__ import annotations

from pathlib import Path

import pytest
from async_runs import ALGO, ASYNC, timeless, work
from documented_keys import check_keys, documented, written_keys
from listening_ports import free_ports

from bepa_torchrl.experiment import preflight
from bepa_torchrl.experiment.checks import ROLLOUT_SIDE
from bepa_torchrl.experiment.checks.distribution import gpus_of_services
from bepa_torchrl.experiment.config import ConfigError, check, load_config
from bepa_torchrl.experiment.run_record import read_lines
from bepa_torchrl.scale.engine.errors import EngineError


@pytest.mark.slow
def test_without_staleness_the_run_is_the_synchronous_one(folder: Path, overrides: tuple[str, ...]) -> None:
    straight = work(folder, "sync", *overrides, ALGO, "eval.every=0")
    found = work(folder, "async", *overrides, ALGO, *ASYNC)
    assert [line["iteration"] for line in found] == [1, 2, 3]
    for one, other in zip(straight, found, strict=True):
        assert timeless(other) == pytest.approx(timeless(one), abs=1e-4)
        assert other["collect/staleness_max"] == 0.0
    assert any(line["train/optimizer_steps"] for line in found)


@pytest.mark.slow
def test_with_staleness_the_bound_holds_and_a_resumed_run_goes_on(folder: Path, overrides: tuple[str, ...]) -> None:
    settings = (*overrides, ALGO, *ASYNC, "collect.max_staleness=1")
    first = work(folder, "stale", *settings, "train.iterations=2")
    lines = work(folder, "stale", *settings, "train.iterations=4", "resume=true")
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]
    assert lines[:2] == first
    assert all(line["collect/staleness_max"] <= 1 for line in lines)
    assert all(line["collect/episodes"] == 4 for line in lines)  # two groups of two


def test_settings_of_asynchronous_rollouts_require_the_mode() -> None:
    one, other = "collect.max_staleness=1", "collect.order=completion"
    for overrides in ([one], [other], [one, other]):
        with pytest.raises(ConfigError) as caught:
            load_config(overrides)
        given, are = " and ".join(overrides), "is" if len(overrides) == 1 else "are"
        assert str(caught.value) == f"{given} {are} read with collect.mode=async only; set it, or leave this out"
        load_config([*overrides, "collect.mode=async"])
    with pytest.raises(ConfigError, match=r"cluster\.address=auto requires collect\.mode=async"):
        load_config(["cluster.address=auto"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["cluster.address=auto", "cluster.replicas=2"], r"is one engine, got cluster\.replicas=2; set cluster"),
        (["compare=[grpo]", "processes=2"], r"weights of one method, got processes=2 for bepa, grpo; set processes=1"),
        (["policy.engine.devices='1'"], r"policy\.engine\.devices=1: the engine of policy\.engine\.url has those of"),
        (["policy.engine.arguments.seed=1"], r"policy\.engine\.arguments=\{'seed': 1\}: the engine of policy"),
        (
            ["policy.engine.weights=nccl", "policy.device=cuda"],
            r"policy\.engine\.weights=nccl is for an engine of this machine",
        ),
        (["expert.reroll_every=5"], r"expert\.reroll_every plays episodes next to the rollouts of collect\.mode=async"),
    ],
)
def test_an_engine_by_http_serves_one_program(given: list[str], problem: str) -> None:
    """Without a URL, each rollout service starts its own engine."""
    engines = ["compare=[]", "collect.mode=async", "policy.rollout=vllm", "train.old_log_probs=all"]
    url = "policy.engine.url='http://host:7400'"
    load_config([*engines, url])
    load_config([*engines, *given])
    with pytest.raises(ConfigError, match=problem):
        load_config([*engines, *given, url])
    load_config([*engines, url, "compare=[grpo]", "processes=1"])
    with pytest.raises(ConfigError, match=r"is read with policy\.rollout=vllm only"):
        load_config([url])


def test_certificates_of_an_engine_are_for_https() -> None:
    """By HTTP the token would be sent in plain text to whoever listens there."""
    engine = ["compare=[]", "policy.rollout=vllm", "train.old_log_probs=all", "policy.engine.tls_ca=ca.pem"]
    load_config([*engine, "policy.engine.url='https://host:7400'"])
    with pytest.raises(ConfigError, match=r"tls_ca is for https, got policy\.engine\.url=http://host:7400, "):
        load_config([*engine, "policy.engine.url='http://host:7400'"])


def test_an_engine_loads_the_policy() -> None:
    """Another model in ``policy.engine.arguments`` would only be noticed when vLLM starts."""
    engine = ["compare=[]", "policy.rollout=vllm", "train.old_log_probs=all"]
    load_config([*engine, "policy.engine.arguments.seed=1"])
    with pytest.raises(ConfigError, match=r"policy\.engine\.arguments\.model=other/7b: .* policy\.checkpoint names"):
        load_config([*engine, "policy.engine.arguments.model=other/7b"])


def test_an_engine_that_does_not_answer_is_noticed_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BEPA_ENGINE_TOKEN", "a token of this test")
    (port,) = free_ports(1)
    engine = ["policy.rollout=vllm", "train.old_log_probs=all", f"policy.engine.url='http://127.0.0.1:{port}'"]
    with pytest.raises(EngineError, match=rf"no answer from .*:{port}: .*; start `bepa engine` there, or correct"):
        check(load_config(["compare=[]", *engine]), (preflight.engine,))


def test_the_desktops_of_a_node_are_those_of_one_method() -> None:
    """Its resource ``desktops`` says how many it can have."""
    on_nodes = ["collect.mode=async", "cluster.address=auto", "cluster.workers=null"]
    with pytest.raises(ConfigError, match=r"got processes=2 for bepa, grpo; set processes=1, or compare=\[\]"):
        load_config([*on_nodes, "compare=[grpo]"])
    for changes in (["compare=[]"], ["compare=[grpo]", "processes=1"], ["compare=[grpo]", "cluster.workers=1"]):
        load_config([*on_nodes, *changes])


def test_copies_of_the_policy_on_ray_have_gpus_of_their_own() -> None:
    """Without ``num_gpus`` Ray lets an actor see all of its node's, also the trainer's, and places it on any node."""
    on_ray = ["compare=[]", "policy.device=cuda", "collect.mode=async", "cluster.address=auto"]
    with pytest.raises(ConfigError, match=r"got cluster\.gpus_per_replica=0; set cluster\.gpus_per_replica=1"):
        load_config(on_ray)
    for ranks in ([], ["train.ranks=2"], ["cluster.trainer=ray"]):
        load_config([*on_ray, *ranks, "cluster.gpus_per_replica=0.5"])
    with pytest.raises(ConfigError, match=r"policy\.device=cuda:1: .* is cuda:0 there; set policy\.device=cuda "):
        load_config([*on_ray, "policy.device=cuda:1", "cluster.gpus_per_replica=1"])
    vllm = ["policy.rollout=vllm", "train.old_log_probs=all", "policy.engine.devices=1", "cluster.gpus_per_replica=1"]
    with pytest.raises(ConfigError, match=r"policy\.engine\.devices=1 would be the GPU of every copy .*; leave it out"):
        load_config([*on_ray, *vllm])
    check(load_config([*on_ray, "resume=true", "name=begun"]))  # a run that has begun goes on
    load_config([*on_ray, "policy.device=cpu"])
    load_config([*on_ray, "cluster.listen=127.0.0.1:0"])  # copies of the rollout side, which checks its own
    load_config([*on_ray, "policy.device=cuda:1", "cluster.address=null"])  # threads share the trainer's
    assert gpus_of_services in ROLLOUT_SIDE


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["cluster.workers=4"], r"cluster\.workers=4 is read with cluster\.address only; set it, or leave this out"),
        (["cluster.workers=null", "collect.mode=async"], r"cluster\.workers=null is read with cluster\.address only"),
        (["cluster.replicas=2", "collect.mode=async"], r"cluster\.replicas=2 is read with cluster\.address only"),
        (["cluster.token_file=t", "collect.mode=async"], r"cluster\.token_file=t is read with cluster\.listen only"),
        (
            ["cluster.replicas=2", "collect.mode=async", "cluster.listen=127.0.0.1:0"],
            r"replicas=2 is read with rollouts of its own only; with cluster\.listen give it to `bepa rollouts`",
        ),
    ],
)
def test_settings_of_a_cluster_that_nothing_reads_are_refused(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(["compare=[]", *given])
    load_config(["compare=[]", *given, "resume=true", "name=begun"])  # a run that has begun goes on


@pytest.mark.slow
def test_evaluations_are_played_by_the_workers_and_belong_to_their_iteration(
    folder: Path, overrides: tuple[str, ...]
) -> None:
    """Every iteration but the last of each start is evaluated; nothing is lost or repeated in any log."""
    settings = (*overrides, ALGO, "collect.mode=async", "collect.max_staleness=1", "eval.every=1", "train.save_every=2")
    work(folder, "evaluated", *settings, "train.iterations=3")
    work(folder, "evaluated", *settings, "train.iterations=5", "resume=true")
    run = folder / "evaluated"
    lines = [line for line in read_lines(run / "iterations.jsonl") if line["phase"] == "eval"]
    assert sorted(line["iteration"] for line in lines) == [1, 2, 4]
    check_keys(
        written_keys(run / "evaluations.jsonl"),
        documented("evaluations.jsonl"),
        documented("evaluations.jsonl", "optional key"),
    )
    optional = documented("iterations.jsonl", "optional key")
    check_keys(written_keys(run / "iterations.jsonl"), [], [*documented("iterations.jsonl"), *optional])
    episodes = read_lines(run / "evaluations.jsonl")
    for line in lines:
        mine = [each for each in episodes if each["iteration"] == line["iteration"]]
        assert len(mine) == line["eval/episodes"] == 6  # four training tasks and two held-out ones
        assert {each["reported_at"] for each in mine} == {line["reported_at"]}
        assert line["iteration"] <= line["reported_at"] <= 5
        assert all(each["versions"][-1] >= each["requested_version"] for each in mine)
        assert 0.0 <= line["eval/held_out"] <= 1.0
    (logged,) = (run / "logs").rglob("eval/train.csv")
    assert sorted(int(line.split(",")[0]) for line in logged.read_text().splitlines()) == [1, 2, 4]
