"""``cluster.listen`` and ``bepa rollouts``: their settings, their errors, and a run that is the synchronous one."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from async_runs import ALGO, ASYNC, rollout_side, timeless, work
from listening_ports import free_ports

from bepa_torchrl.cli import main
from bepa_torchrl.experiment import preflight
from bepa_torchrl.experiment.checks import MACHINE, ROLLOUT_SIDE
from bepa_torchrl.experiment.checks.distribution import engine_elsewhere
from bepa_torchrl.experiment.checks.unread import changes_are_read
from bepa_torchrl.experiment.config import ConfigError, check, load_config, setting_names
from bepa_torchrl.experiment.rollout_side import LOCAL, local_changes, merged_settings, shared_settings
from bepa_torchrl.scale.wire.errors import ProtocolError
from osworld_gym.uitars.coords import ImageScaling

LISTEN = "cluster.listen=127.0.0.1:0"
LISTENS = [LISTEN, "collect.mode=async", "compare=[]"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([LISTEN], r"cluster\.listen=127\.0\.0\.1:0 requires collect\.mode=async"),
        (
            [LISTEN, "collect.mode=async"],
            r"requires compare=\[\], since one training process listens there; got .*grpo",
        ),
    ],
)
def test_settings_that_do_not_work_together(given: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_config(given)


def test_the_address_and_the_token_are_checked_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEPA_CHANNEL_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"cluster\.listen: expected HOST:PORT, such as"):
        check(load_config([*LISTENS, "cluster.listen=7300"]), MACHINE)
    with pytest.raises(ValueError, match="expected a token in a file, or in BEPA_CHANNEL_TOKEN"):
        check(load_config(LISTENS), MACHINE)
    with pytest.raises(ValueError, match="none/token: expected a file with a token"):
        check(load_config([*LISTENS, "cluster.token_file=none/token"]), MACHINE)
    monkeypatch.setenv("BEPA_CHANNEL_TOKEN", "a token of this test")
    check(load_config(LISTENS), MACHINE)
    with pytest.raises(ValueError, match=r"cluster\.tls_certificate requires cluster\.tls_key, too"):
        check(load_config([*LISTENS, "cluster.tls_certificate=nowhere.pem"]), MACHINE)
    with pytest.raises(ValueError, match=r"nowhere\.pem: expected a file in PEM"):
        check(load_config([*LISTENS, "cluster.tls_certificate=nowhere.pem", "cluster.tls_key=nowhere.key"]), MACHINE)


def test_an_address_that_cannot_be_used_is_noticed_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was after the preparation, which may take hours."""
    monkeypatch.setenv("BEPA_CHANNEL_TOKEN", "a token of this test")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"cannot listen on {where} \(Address already in use.*set cluster\.listen"):
            check(load_config([*LISTENS, f"cluster.listen={where}"]), (preflight.cluster,))
    check(load_config([*LISTENS, f"cluster.listen={where}"]), (preflight.cluster,))  # it is free again, and left free
    socket.create_server(("127.0.0.1", int(where.rpartition(":")[2]))).close()


def test_the_rollout_side_has_the_trainers_settings_but_for_its_machines() -> None:
    assert set(LOCAL) < set(setting_names())
    trained = load_config(
        [
            "train.old_log_probs=all",
            "env=local",
            "env.options.apps=[x]",
            "collect.temperature=0.7",
            "seed=5",
            "eval.every=3",
        ]
    )
    scaling = ImageScaling(factor=28, min_pixels=100, max_pixels=2000)
    shared = shared_settings(trained, scaling)
    own = ["env.desktops=9", "cluster={replicas: 2, replica_slack: 3}"]
    settings, found = merged_settings(shared, local_changes(own, None))
    assert found == scaling
    assert (settings.env.desktops, settings.cluster.replicas, settings.cluster.replica_slack) == (9, 2, 3)
    assert (settings.env.provider, settings.env.options, settings.env.deadline) == ("local", {"apps": ["x"]}, 240.0)
    assert (settings.collect, settings.policy, settings.seed) == (trained.collect, trained.policy, 5)
    other, _ = merged_settings(shared, local_changes(["env.provider=sim"], None))
    assert (other.env.provider, other.env.options) == ("sim", {})
    engine = ["policy.rollout=vllm", "policy.engine.kv_cache_gb=2", "policy.engine.url='http://b:1'"]
    sampled, _ = merged_settings(shared, local_changes(engine, None))
    assert (sampled.policy.rollout, sampled.policy.engine.kv_cache_gb) == ("vllm", 2.0)
    assert sampled.policy.engine.url == "http://b:1"
    with pytest.raises(ProtocolError, match="install the same version of this package on both sides"):
        merged_settings(shared | {"settings": {**shared["settings"], "env": {"vendor": "x"}}}, {})


def test_the_trainers_engine_is_not_the_rollout_sides() -> None:
    scaling = ImageScaling(factor=28, min_pixels=100, max_pixels=2000)
    engine = ["policy.rollout=vllm", "policy.engine.url='http://a:1'", "policy.engine.timeout=99"]
    trainer = load_config(["compare=[]", "train.old_log_probs=all", *engine])
    settings, _ = merged_settings(shared_settings(trainer, scaling), {})
    assert (settings.policy.rollout, settings.policy.engine.url, settings.policy.engine.timeout) == ("vllm", None, 99.0)
    trained = shared_settings(load_config(["train.old_log_probs=injected"]), scaling)
    settings, _ = merged_settings(trained, local_changes(["policy.rollout=vllm"], None))
    with pytest.raises(ConfigError, match=r"policy\.rollout=vllm requires the trainer's own old log-probs"):
        check(settings, ROLLOUT_SIDE)


def test_an_engine_elsewhere_has_none_of_the_trainers_arguments() -> None:
    engine = ["policy.rollout=vllm", "policy.engine.arguments.seed=1", "policy.engine.weights=folder"]
    shared = shared_settings(
        load_config(["train.old_log_probs=all", "collect.mode=async", *engine]), ImageScaling(28, 100, 2000)
    )
    for given, expected in (([], ({"seed": 1}, "folder")), (["policy.engine.url='http://b:1'"], ({}, "auto"))):
        settings, _ = merged_settings(shared, local_changes(given, None))
        assert (settings.policy.engine.arguments, settings.policy.engine.weights) == expected
        assert engine_elsewhere(settings) is None
    assert engine_elsewhere in ROLLOUT_SIDE


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["cluster.workers=8"], "cluster.workers=8 is read with cluster.address only; set it, or leave this out"),
        (["cluster={replicas: 2}"], "cluster.replicas=2 is read with cluster.address only; set it, or leave this out"),
        (
            ["cluster.address=auto", "cluster.replica_slack=2"],
            "cluster.replica_slack=2 is read with cluster.replicas above 1 only; set it, or leave this out",
        ),
        (
            ["policy.engine.arguments.seed=1"],
            'policy.engine.arguments={"seed": 1} is read with policy.rollout=vllm only; set it, or leave this out',
        ),
        (["cluster.address=auto", "cluster.workers=1", "policy.max_rows=4", "threads=2"], None),
        (["policy.rollout=vllm", "policy.engine.kv_cache_gb=2"], None),
    ],
)
def test_what_nothing_on_the_rollout_side_reads_is_refused(given: list[str], problem: str | None) -> None:
    trained = load_config(["train.old_log_probs=all", "compare=[]", "collect.mode=async", "collect.max_staleness=1"])
    changes = local_changes(given, None)
    settings, _ = merged_settings(shared_settings(trained, ImageScaling(28, 100, 2000)), changes)
    assert changes_are_read(settings, changes) == problem


def test_an_engine_of_the_rollout_side_has_room_for_a_window() -> None:
    scaling = ImageScaling(factor=28, min_pixels=100, max_pixels=2000)
    trained = shared_settings(load_config(["policy=qwen3vl_8b", "train.old_log_probs=all"]), scaling)
    for size, problem in (("9.7", r"need 9\.74 GB.*set policy\.engine\.kv_cache_gb=9\.8"), ("9.8", "")):
        changes = local_changes(["policy.rollout=vllm", f"policy.engine.kv_cache_gb={size}"], None)
        settings, _ = merged_settings(trained, changes)
        with pytest.raises(ConfigError, match=problem) if problem else nullcontext():
            check(settings, (preflight.engine_cache,))
    assert preflight.engine_cache in ROLLOUT_SIDE


def test_the_rollout_side_imports_modules_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_the_rollout_side.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    changes = local_changes(["import=[module_of_the_rollout_side]"], None)
    assert sys.modules.pop("module_of_the_rollout_side")
    shared = shared_settings(load_config(), ImageScaling(factor=28, min_pixels=100, max_pixels=2000))
    settings, _ = merged_settings(shared, changes)
    assert settings.import_ == ("module_of_the_rollout_side",)


@pytest.mark.parametrize("key", ["collect.temperature=0.5", "env.max_steps=3", "env=local", "seed=1"])
def test_what_the_trainer_determines_is_not_set_on_the_rollout_side(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key.partition('=')[0]} is determined by the trainer; set it there"):
        local_changes([key], None)
    with pytest.raises(ConfigError, match="unknown key"):
        local_changes(["env.desktop=3"], None)


def test_errors_of_the_command_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("BEPA_CHANNEL_TOKEN", raising=False)
    assert main(["rollouts", "--connect", "127.0.0.1:1"]) == 2
    token = tmp_path / "token"
    token.write_text("a token of this test")
    assert main(["rollouts", "--connect", "127.0.0.1", "--token-file", str(token)]) == 2
    assert main(["rollouts", "--connect", "127.0.0.1:1", "--token-file", str(token), "seed=1"]) == 2
    assert main(["rollouts", "--connect", "127.0.0.1:1", "--token-file", str(token), "--wait", "0.1"]) == 3
    secure = ["rollouts", "--token-file", str(token), "--tls-ca", str(token), "--connect"]
    assert main([*secure, "127.0.0.1:1"]) == 2
    assert main([*secure, "http://127.0.0.1:1"]) == 2
    assert main(["rollouts", "--connect", "ftp://127.0.0.1:1", "--token-file", str(token)]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 7
    assert "expected a token" in errors[0]
    assert "expected HOST:PORT" in errors[1]
    assert "seed is determined by the trainer" in errors[2]
    assert "no trainer at 127.0.0.1:1 for 0.1 s" in errors[3]
    assert f"--tls-ca={token}: expected certificates in PEM" in errors[4]
    assert "--tls-ca is for https, got --connect http://127.0.0.1:1" in errors[5]
    assert "--connect: expected http://HOST:PORT or https://HOST:PORT" in errors[6]


@pytest.mark.slow
def test_a_run_that_is_played_elsewhere_is_the_synchronous_one(
    folder: Path, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    token, (port,) = tmp_path / "token", free_ports(1)
    token.write_text("a token of this test")
    straight = work(folder, "at_home", *overrides, ALGO, "eval.every=0")
    served = (f"cluster.listen=127.0.0.1:{port}", f"cluster.token_file={token}")
    with rollout_side(port, token, tmp_path / "log", "env.desktops=4") as process:
        found = work(folder, "elsewhere", *overrides, ALGO, *ASYNC, *served, "eval.every=2")
        assert process.wait(60.0) == 0
    for one, other in zip(straight, found, strict=True):
        with_evaluation = {"cache/js", "cache/tail"}  # of the iterations with an evaluation
        assert {key: value for key, value in timeless(other).items() if key not in with_evaluation} == pytest.approx(
            timeless(one), abs=1e-4
        )
        assert other["collect/staleness_max"] == 0.0
    assert any(line["train/optimizer_steps"] for line in found)
    evaluated = [json.loads(line) for line in (folder / "elsewhere" / "evaluations.jsonl").read_text().splitlines()]
    assert len({episode["task_id"] for episode in evaluated}) == 6
    assert all(episode["failure"] is None for episode in evaluated)
    assert (tmp_path / "log").read_text().splitlines()[-1] == "the training has ended"
