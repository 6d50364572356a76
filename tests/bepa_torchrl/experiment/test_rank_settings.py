"""``train.ranks``: settings that do not work on several ranks are refused before anything is written."""

from __future__ import annotations

import pytest

from bepa_torchrl.experiment.config import ConfigError, load_config
from bepa_torchrl.experiment.environment import check_environment
from bepa_torchrl.experiment.launcher import _check_gpus


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.kind=adamw_8bit", "optimizer.kind=adamw_8bit do not work together; set optimizer.kind=adamw"),
        ("collect.mode=async", "collect.mode=async do not work together; set collect.mode=sync, or train.ranks=1"),
        ("policy.device=cuda:1", "takes the GPUs cuda:0 to cuda:1, got policy.device=cuda:1; set policy.device=cuda"),
    ],
)
def test_refusals(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_environment(load_config([override, "train.ranks=2"]))
    assert message in str(raised.value)


def test_several_ranks_on_the_cpu_are_accepted() -> None:
    for override in ("seed=0", "policy.lora.rank=4"):
        settings = load_config(["train.ranks=2", override])
        check_environment(settings)
        _check_gpus(settings)


def test_fewer_gpus_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    _check_gpus(load_config(["train.ranks=2", "policy.device=cuda"]))
    with pytest.raises(ConfigError, match=r"train\.ranks=3 requires 3 GPUs, this machine has 2; lower it"):
        _check_gpus(load_config(["train.ranks=3", "policy.device=cuda"]))


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes would each start the same run."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(ConfigError, match=r"cannot be started by torchrun; run it once, with train\.ranks=N"):
        check_environment(load_config([]))
