"""A checkpoint of one process goes on divided over ranks, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from process_groups import errors_of, run_ranks
from sharded_training import (
    made_batches,
    made_policy,
    optimizer_of,
    resume_whole,
    save_whole,
    train,
    whole_weights,
)
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.scale.sharding.checkpoints.sharded import load_sharded, save_sharded
from bepa_torchrl.scale.sharding.checkpoints.whole import load_whole_optimizer, load_whole_weights
from bepa_torchrl.training.optimization_step import local_passes, trainable
from bepa_torchrl.training.precision import MasterAdamW


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"frozen": ["visual"], "family": "qwen3_vl"}, {"lora": Lora(rank=4, alpha=8)}],
    ids=["full", "frozen tower", "adapters"],
)
def test_one_process_then_two_then_one_equal_one_process(tmp_path: Path, options: dict[str, Any]) -> None:
    """Loss curve and weights, with AdamW's moments and step counts, in float64."""
    alone, first, last = (made_policy(**options) for _ in range(3))
    batches = made_batches(alone)
    expected = train(alone, optimizer_of(alone), batches, local_passes)
    optimizer = optimizer_of(first)
    found = train(first, optimizer, batches[:2], local_passes)
    first.version = 2
    save_whole(first, optimizer, tmp_path / "first")
    codes = run_ranks(resume_whole, 2, tmp_path, "first", slice(2, 3), "second", options)
    assert codes == [0, 0], errors_of(tmp_path)
    found += json.loads((tmp_path / "second.json").read_text())
    optimizer = optimizer_of(last)
    load_sharded(last, optimizer, tmp_path / "second")
    assert last.version == 3
    found += train(last, optimizer, batches[3:], local_passes)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], abs=1e-5)
    weights, same = whole_weights(last), whole_weights(alone)
    assert max(float((weights[name] - weight).abs().max()) for name, weight in same.items()) < 1e-5
    untrained = whole_weights(made_policy(**options))
    assert max(float((untrained[name] - weight).abs().max()) for name, weight in same.items()) > 1e-4


def half_precision() -> tuple[Any, MasterAdamW]:
    """The policy in bfloat16, and AdamW with float32 masters."""
    policy = made_policy()
    policy.model.bfloat16()
    return policy, MasterAdamW(trainable(policy), lr=1e-3)


@pytest.mark.slow
def test_float32_masters_go_to_two_ranks_and_back_without_rounding(tmp_path: Path) -> None:
    policy, optimizer = half_precision()
    train(policy, optimizer, made_batches(policy)[:2], local_passes)
    save_whole(policy, optimizer, tmp_path / "first")
    codes = run_ranks(resume_whole, 2, tmp_path, "first", slice(0), "second", {"dtype": torch.float32})
    assert codes == [0, 0], errors_of(tmp_path)
    resumed, again = half_precision()
    load_sharded(resumed, again, tmp_path / "second")
    assert_same_state(again, optimizer)
    pairs = list(zip(resumed.parameters(), policy.parameters(), strict=True))
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert any(not torch.equal(again.master_of(weight), weight.float()) for weight in again.weights)


def test_masters_are_saved_instead_of_the_rounded_weights(tmp_path: Path) -> None:
    policy, optimizer = half_precision()
    train(policy, optimizer, made_batches(policy)[2:3], local_passes)
    save_sharded(policy, optimizer, tmp_path / "saved")
    resumed, again = half_precision()
    load_sharded(resumed, again, tmp_path / "saved")
    assert_same_state(again, optimizer)


def assert_same_state(some: MasterAdamW, others: MasterAdamW) -> None:
    """Equal masters, moments and step counts, to the last bit."""
    assert others.state
    for ours, theirs in zip(some.masters, others.masters, strict=True):
        assert torch.equal(ours, theirs)
        assert some.state[ours].keys() == others.state[theirs].keys()
        for name, value in others.state[theirs].items():
            assert torch.equal(some.state[ours][name], value), name


def test_checkpoints_of_another_model_or_optimiser_are_refused(tmp_path: Path) -> None:
    policy = made_policy()
    optimizer = optimizer_of(policy)
    save_whole(policy, optimizer, tmp_path / "saved")
    others = {"frozen": ["visual"]}, {"lora": Lora(rank=4, alpha=8)}
    for options in others:
        other = made_policy(**options)
        with pytest.raises(CheckpointError, match=r"not of this AdamW or not of these \d+ trained parameters"):
            load_whole_optimizer(optimizer_of(other), tmp_path / "saved" / "stepper")
    before = whole_weights(adapted := made_policy(lora=Lora(rank=4, alpha=8)))
    with pytest.raises(CheckpointError, match="is of another model: names or shapes"):
        load_whole_weights(adapted, tmp_path / "saved" / "weights")
    assert all(torch.equal(weight, before[name]) for name, weight in whole_weights(adapted).items())
    eight_bit = torch.optim.SGD(policy.parameters(), lr=1e-3, momentum=0.9)
    for parameter in policy.parameters():
        eight_bit.state[parameter] = {"state1": torch.zeros(1), "step": torch.tensor(1.0)}
    save_whole(policy, eight_bit, tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"not of this AdamW .* optimizer\.kind"):
        load_whole_optimizer(optimizer, tmp_path / "other" / "stepper")
    (tmp_path / "saved" / "weights" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="no weights that can be read"):
        load_whole_weights(policy, tmp_path / "saved" / "weights")
