"""policy.rollout and loss.rollout_correction: what they require, and what the loss gets."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from bepa_torchrl.experiment.checks import MACHINE
from bepa_torchrl.experiment.config import ConfigError, check, load_config
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.experiment.loss_and_optimizer import make_method_loss
from bepa_torchrl.failures import INFRASTRUCTURE, exit_code
from bepa_torchrl.methods import method_named
from bepa_torchrl.scale.engine.errors import EngineVersionError, WeightSyncError


@pytest.mark.parametrize("setting", ["policy.rollout=vllm", "loss.rollout_correction=token"])
def test_the_trainers_own_old_log_probs_are_required(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"{setting} requires .* set train.old_log_probs=all"):
        load_config([setting, "train.old_log_probs=injected"])
    load_config([setting, "train.old_log_probs=all"])


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_a_missing_engine_is_noticed_before_the_run() -> None:
    settings = load_config(["policy.rollout=vllm", "train.old_log_probs=all"])
    with pytest.raises(EngineVersionError, match=r"vLLM >=0\.27\.1,<0\.33, which is not installed; fix: pip install"):
        check(settings, MACHINE)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "off"),
        (["policy.rollout=vllm"], "measure"),
        (["policy.rollout=vllm", "loss.rollout_correction=sequence"], "sequence"),
        (["loss.rollout_correction=token"], "token"),
        (["collect.mode=async", "collect.max_staleness=1"], "measure"),
    ],
)
def test_with_an_engine_the_difference_is_always_measured(overrides: list[str], expected: str) -> None:
    cap = ["loss.rollout_cap=3"] if expected in ("token", "sequence") else []
    settings = load_config(["train.old_log_probs=all", *overrides, *cap])
    policy = make_policy(settings, seed=0)
    for name in ("grpo", "luffy", "rl_sft"):
        loss = make_method_loss(settings, method_named(name), policy)
        assert (loss.rollout_correction, loss.rollout_cap) == (expected, 3.0 if cap else 2.0)


def test_a_failed_sync_is_an_infrastructure_failure() -> None:
    assert exit_code(WeightSyncError("stale")) == INFRASTRUCTURE
