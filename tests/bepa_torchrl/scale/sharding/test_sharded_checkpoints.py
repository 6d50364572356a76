"""Sharded checkpoints resume on another number of processes; exports open as ordinary checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from process_groups import errors_of, run_ranks
from sharded_training import made_batches, made_policy, optimizer_of, resume_sharded, train, whole_weights
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.policies.transformers.policy import load_policy
from bepa_torchrl.scale.sharding.checkpoints.sharded import load_sharded, save_sharded
from bepa_torchrl.training.optimization_step import local_passes

pytestmark = pytest.mark.slow


def test_two_processes_then_three_then_one_equal_one_process(tmp_path: Path) -> None:
    """Weights and AdamW's state go from 2 to 3 processes, and to one that is not sharded."""
    assert run_ranks(resume_sharded, 2, tmp_path, None, slice(0, 2), "first") == [0, 0], errors_of(tmp_path)
    assert run_ranks(resume_sharded, 3, tmp_path, "first", slice(2, 3), "second") == [0] * 3, errors_of(tmp_path)
    alone, resumed = made_policy(), made_policy()
    batches = made_batches(alone)
    optimizer = optimizer_of(alone)
    train(alone, optimizer, batches[:3], local_passes)
    exported = load_policy(tmp_path / "second-exported", dtype=torch.float64)
    assert exported.model.config.architectures == ["Qwen2_5_VLForConditionalGeneration"]
    assert difference(whole_weights(exported), whole_weights(alone)) < 1e-5
    optimizer_of_resumed = optimizer_of(resumed)
    load_sharded(resumed, optimizer_of_resumed, tmp_path / "second")
    assert resumed.version == 3
    train(alone, optimizer, batches[3:], local_passes)
    train(resumed, optimizer_of_resumed, batches[3:], local_passes)
    assert difference(whole_weights(resumed), whole_weights(alone)) < 1e-5


def test_adapters_are_saved_alone_and_exported_merged(tmp_path: Path) -> None:
    """2 processes, then 3, then one; the exported adapters load onto the first checkpoint, too."""
    lora = {"lora": Lora(rank=4, alpha=8)}
    assert run_ranks(resume_sharded, 2, tmp_path, None, slice(0, 2), "first", lora) == [0, 0], errors_of(tmp_path)
    assert run_ranks(resume_sharded, 3, tmp_path, "first", slice(2, 3), "second", lora) == [0] * 3, errors_of(tmp_path)
    index = json.loads((tmp_path / "second" / "sharded.json").read_text())
    assert all(".lora_" in name for name in index["shapes"])
    alone, resumed = made_policy(**lora), made_policy(**lora)
    batches = made_batches(alone)
    train(alone, optimizer_of(alone), batches[:3], local_passes)
    load_sharded(resumed, optimizer_of(resumed), tmp_path / "second")
    assert difference(dict(resumed.named_weights()), dict(alone.named_weights())) < 1e-5
    exported = tmp_path / "second-exported"
    whole = load_policy(exported, dtype=torch.float64)
    assert difference(dict(whole.named_weights()), dict(alone.named_weights())) < 1e-5
    adapted = made_policy(lora=Lora(rank=4, alpha=8, adapter=exported / "adapter"))
    assert difference(dict(adapted.named_weights()), dict(alone.named_weights())) < 1e-5
    untrained = made_policy()
    assert difference(dict(untrained.named_weights()), dict(alone.named_weights())) > 1e-4


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    policy = made_policy()
    optimizer = optimizer_of(policy)
    path = save_sharded(policy, optimizer, tmp_path / "saved")
    with pytest.raises(FileExistsError, match="not overwritten"):
        save_sharded(policy, optimizer, path)
    shard = path / "rank-0-of-1.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="no complete sharded checkpoint"):
        load_sharded(policy, optimizer, path)
    with pytest.raises(CheckpointError, match="no complete sharded checkpoint"):
        load_sharded(policy, optimizer, tmp_path / "missing")


def difference(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    """The largest between two sets of weights of the same names."""
    assert some.keys() == others.keys()
    return max(float((some[name].double() - others[name].double()).abs().max()) for name in some)
