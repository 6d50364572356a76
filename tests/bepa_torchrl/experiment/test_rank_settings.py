"""``train.ranks``: settings that do not work on several ranks are refused before anything is written."""

from __future__ import annotations

import pytest

from bepa_torchrl.experiment.config import ConfigError, load_config
from bepa_torchrl.experiment.phases.sequence import check_gpus, check_torchrun
from bepa_torchrl.experiment.preflight import check_environment
from bepa_torchrl.scale.sharding.torchrun import TorchrunJob


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("collect.mode=async", "collect.mode=async do not work together; set collect.mode=sync, or train.ranks=1"),
        ("policy.device=cuda:1", "takes the GPUs cuda:0 to cuda:1, got policy.device=cuda:1; set policy.device=cuda"),
    ],
)
def test_refusals(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_environment(load_config([override, "train.ranks=2"]))
    assert message in str(raised.value)


def test_several_ranks_on_the_cpu_are_accepted() -> None:
    for override in ("seed=0", "policy.lora.rank=4", "optimizer.kind=adamw_8bit"):
        settings = load_config(["train.ranks=2", override])
        check_environment(settings)
        check_gpus(settings)


def test_fewer_gpus_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    check_gpus(load_config(["train.ranks=2", "policy.device=cuda"]))
    with pytest.raises(ConfigError, match=r"train\.ranks=3 requires 3 GPUs, this machine has 2; lower it"):
        check_gpus(load_config(["train.ranks=3", "policy.device=cuda"]))


def test_torchrun_is_refused_by_other_commands_than_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes would each do the same."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match="bepa train is the only command that torchrun may start; run this one"):
        check_environment(load_config([]))
    check_environment(load_config(["train.ranks=2"]), torchrun=True)


def test_torchruns_processes_need_gpus_of_their_machine_and_one_method_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = TorchrunJob(rank=0, ranks=4, local_rank=0, local_ranks=2, host="localhost", port=1, attempt=0)
    monkeypatch.setattr("bepa_torchrl.experiment.phases.sequence.torchrun_job", lambda: job)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    settings = ["train.ranks=4", "policy.device=cuda", "compare=[grpo]"]
    check_gpus(load_config(settings))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node=2 requires 2 GPUs, this machine has 1; lower it"):
        check_gpus(load_config(settings))
    check_torchrun(load_config([*settings, "processes=1"]))
    with pytest.raises(ConfigError, match="processes=2: torchrun's processes train one method at a time"):
        check_torchrun(load_config([*settings, "processes=2"]))
