"""``train.ranks``: settings that do not work on several ranks are refused before anything is written."""

from __future__ import annotations

import pytest

from bepa_torchrl.experiment.checks import COMMAND, DEVICES, MACHINE
from bepa_torchrl.experiment.config import ConfigError, check, load_config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("collect.mode=async", "collect.mode=async do not work together; set collect.mode=sync, or train.ranks=1"),
        ("policy.device=cuda:1", "takes the GPUs cuda:0 to cuda:1, got policy.device=cuda:1; set policy.device=cuda"),
    ],
)
def test_refusals(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config([override, "train.ranks=2"])
    assert message in str(raised.value)


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
