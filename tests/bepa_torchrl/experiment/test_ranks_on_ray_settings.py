"""``cluster.trainer=ray``: what is refused before anything is placed, and where a placed rank is. Without Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from bepa_torchrl.commands import train
from bepa_torchrl.experiment.checks import DEVICES
from bepa_torchrl.experiment.checks.check import first_problem
from bepa_torchrl.experiment.config import ConfigError, load_config, load_methods, settings_to_yaml
from bepa_torchrl.experiment.gpus import trainer_gpus
from bepa_torchrl.experiment.launcher import effective_settings
from bepa_torchrl.experiment.run_folder import continue_command
from bepa_torchrl.experiment.started_by import by_ray, by_torchrun, cluster_address, is_rank

ON_RAY = ("cluster.trainer=ray", "cluster.address=auto", "train.ranks=2", "compare=[]")


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is one of two ranks on its node."""
    environment = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2", "BEPA_RAY_CLUSTER": "10.0.0.1:6379"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_ranks_on_ray_may_be_synchronous_or_not() -> None:
    assert load_config(ON_RAY).cluster.trainer == "ray"
    assert load_config([*ON_RAY, "collect.mode=async"]).collect.mode == "async"
    assert load_config([*ON_RAY, "policy.device=cuda", "restarts=2", "train.ranks=1"]).restarts == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            "cluster.address=null",
            "cluster.trainer=ray requires a cluster; set cluster.address=HEAD:6379, auto or",
        ),
        ("cluster.address='ray://h:10001'", "bepa train is started on a node of the cluster; set cluster.address=auto"),
        ("policy.device=cuda:1", "takes the GPUs cuda:0 to cuda:1, got policy.device=cuda:1; set policy.device=cuda"),
        (
            "compare=[luffy]",
            "processes=2: the ranks of cluster.trainer=ray train one method at a time; set proc",
        ),
        ("cluster.trainer=here", "cluster.address=auto requires collect.mode=async; set it"),
        ("cluster.cpus_per_rank=0", "cluster.cpus_per_rank"),
    ],
)
def test_combinations_that_exclude_each_other(change: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config([*ON_RAY, change])
    assert problem in str(raised.value)


def test_an_engine_with_gpus_that_ray_does_not_know_of_is_refused() -> None:
    engine = ("policy.rollout=vllm", "policy.engine.devices='2'", "policy.device=cuda", "train.old_log_probs=all")
    with pytest.raises(ConfigError, match=r"policy\.engine\.devices=2 is not known to Ray, .*; leave it out"):
        load_config([*ON_RAY, *engine])


def test_settings_of_placing_are_not_set_without_it() -> None:
    for change in ("cluster.cpus_per_rank=2", "cluster.place_timeout=5"):
        with pytest.raises(ConfigError, match=r"is read with cluster\.trainer=ray only; set it, or leave this out"):
            load_config([change])


def test_torchrun_does_not_place_ranks_by_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match="Ray places the ranks, and torchrun has started this process; use one of"):
        load_config(ON_RAY)


@pytest.mark.usefixtures("placed")
def test_a_placed_rank_joins_the_cluster_that_it_is_in() -> None:
    settings = load_config([*ON_RAY, "cluster.address=local", "restarts=3"])
    assert is_rank()
    assert by_ray()
    assert not by_torchrun()
    assert cluster_address(settings) == "10.0.0.1:6379"
    assert cluster_address(load_config(["compare=[]"])) is None
    assert continue_command(settings, Path("runs/x")) == "bepa train name=x resume=true"


@pytest.mark.usefixtures("placed")
def test_a_placed_rank_has_the_gpus_of_the_ranks_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    settings = load_config([*ON_RAY, "train.ranks=4", "policy.device=cuda"])
    assert trainer_gpus(settings) == ("5", "7")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert first_problem(settings, DEVICES) is None
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    problem = "Ray has placed 2 ranks here, and torch sees 0 GPUs; check the node's driver and CUDA"
    assert first_problem(settings, DEVICES) == problem


def test_a_resumed_run_is_where_it_was(tmp_path: Path) -> None:
    """Or where the command line says."""
    run = [f"runs={tmp_path}", "name=x"]
    saved = load_config([*ON_RAY, *run])
    for folder in (tmp_path / "x", tmp_path / "x" / "bepa"):
        folder.mkdir()
        (folder / "config.yaml").write_text(settings_to_yaml(saved))
    (tmp_path / "x" / "overrides.json").write_text("[]")
    resume = [*run, "resume=true"]

    def found(*changes: str) -> tuple[str, int]:
        settings = effective_settings(load_methods([*resume, *changes]), [*resume, *changes])
        return settings.cluster.trainer, settings.train.ranks

    assert found() == ("ray", 2)
    assert found("train.ranks=3") == ("ray", 3)
    new = [f"runs={tmp_path}", "name=new", "resume=true"]
    assert effective_settings(load_methods(new), new).cluster.trainer == "here"


def test_a_missing_cluster_is_an_error_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without Ray here: the head is asked by a plain connection."""
    monkeypatch.setattr("bepa_torchrl.experiment.launcher.require_extra", lambda *_: None)
    run = ["cluster.address=127.0.0.1:1", f"runs={tmp_path}", "name=x", "policy=tiny"]
    assert train.main([*ON_RAY, *run]) == 3
    assert "no Ray cluster at 127.0.0.1:1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.yaml").touch()
    assert train.main([*ON_RAY, f"runs={tmp_path}", "name=x", "policy=tiny"]) == 2
    assert "x exists and is not overwritten; give another name=" in capsys.readouterr().err
