"""``train.ranks``: settings that do not work on several ranks are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from bepa_torchrl.experiment.checks import COMMAND, DEVICES, MACHINE
from bepa_torchrl.experiment.checks.check import first_problem
from bepa_torchrl.experiment.config import ConfigError, check, load_config
from bepa_torchrl.experiment.gpus import engine_gpus
from bepa_torchrl.experiment.run_folder import begun


def test_one_gpu_for_all_ranks_is_refused() -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(["policy.device=cuda:1", "train.ranks=2"])
    message = "takes the GPUs cuda:0 to cuda:1, got policy.device=cuda:1; set policy.device=cuda"
    assert message in str(raised.value)


#: an engine that samples in the trainer's process while the ranks train
BESIDE = ("train.ranks=2", "policy.device=cuda", "collect.mode=async", "policy.rollout=vllm", "train.old_log_probs=all")


@pytest.mark.parametrize(
    ("visible", "devices", "problem"),
    [
        (None, None, "policy.engine.devices is not set, so that the engine would take the GPU 0 of train.ranks=2"),
        (None, "1", "the engine would take the GPU 1 of train.ranks=2, which has 0, 1; set policy.engine.devices to o"),
        (None, "2,1,3", "the engine would take the GPU 1 of"),
        (None, "2,3", None),
        ("4,5,6", "5", "the engine would take the GPU 5 of train.ranks=2, which has 4, 5"),
        ("4,5,6", None, "so that the engine would take the GPU 4 of"),
        ("4,5,6", "6", None),
        ("GPU-a, GPU-b,GPU-c", "GPU-b", "the engine would take the GPU GPU-b of"),
    ],
)
def test_an_engine_beside_ranks_that_train_has_other_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, devices: str | None, problem: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    settings = load_config([*BESIDE, *([] if devices is None else [f"policy.engine.devices='{devices}'"])])
    found = first_problem(settings, [engine_gpus])
    assert found is None if problem is None else problem in str(found)
    assert engine_gpus in MACHINE


@pytest.mark.parametrize(
    "other",
    [
        "collect.mode=sync",
        "cluster={address: auto, gpus_per_replica: 1}",
        "cluster.listen=0.0.0.0:1",
        "policy.engine.url='http://h:1'",
        "train.ranks=1",
        "policy.device=cpu",
        "policy.rollout=transformers",
    ],
)
def test_engines_elsewhere_or_in_lock_step_need_no_gpus_of_their_own(other: str) -> None:
    assert engine_gpus(load_config([*BESIDE, "compare=[]", other])) is None


def test_restarts_by_torchrun_are_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    load_config(["restarts=3"])
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match=r"restarts=3: torchrun starts its processes again itself; set restarts=0"):
        load_config(["restarts=3"])


def test_several_ranks_on_the_cpu_are_accepted() -> None:
    for override in ("seed=0", "policy.lora.rank=4", "optimizer.kind=adamw_8bit"):
        settings = load_config(["train.ranks=2", override])
        check(settings, (*MACHINE, *DEVICES))


def test_fewer_gpus_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check(load_config(["train.ranks=2", "policy.device=cuda"]), DEVICES)
    with pytest.raises(ConfigError, match=r"train\.ranks=3 requires 3 GPUs, this machine has 2; lower it"):
        check(load_config(["train.ranks=3", "policy.device=cuda"]), DEVICES)


def test_torchrun_is_refused_by_other_commands_than_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes would each do the same."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match="bepa train is the only command that torchrun may start; run this one"):
        check(load_config([]), COMMAND)
    check(load_config(["train.ranks=2", "processes=1"]), MACHINE)


def test_torchruns_processes_need_gpus_of_their_machine_and_one_method_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    settings = ["train.ranks=4", "policy.device=cuda", "compare=[grpo]"]
    loaded = load_config([*settings, "processes=1"])
    check(loaded, DEVICES)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node=2 requires 2 GPUs, this machine has 1; lower it"):
        check(loaded, DEVICES)
    with pytest.raises(ConfigError, match="processes=2: torchrun's processes train one method at a time"):
        load_config([*settings, "processes=2"])


def test_a_run_that_has_begun_is_one_with_settings_in_its_folder(tmp_path: Path) -> None:
    """Processes that torchrun starts again go on with it."""
    new = load_config([f"runs={tmp_path}", "name=x"])
    assert not begun(new)
    (tmp_path / "x").mkdir()
    assert not begun(new)
    (tmp_path / "x" / "config.yaml").write_text("")
    assert begun(new)
    assert not begun(load_config([f"runs={tmp_path}", "name=x", "resume=true"]))
    assert not begun(load_config([f"runs={tmp_path}"]))
