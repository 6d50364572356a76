"""8-bit AdamW on ranks: each updates its rows as if they were plain tensors; its state fits as many ranks only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from process_groups import errors_of, run_ranks
from safetensors.torch import load_file
from sharded_training import made_batches, made_policy, optimizer_of, save_whole, train, train_in_8_bits, whole_weights
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.sharding.checkpoint import load_sharded, save_sharded
from bepa_torchrl.sharding.whole_checkpoint import load_whole_optimizer
from bepa_torchrl.training.local_shards import LocalShards
from bepa_torchrl.training.optimization_step import local_passes, trainable
from bepa_torchrl.training.precision import make_adamw


@pytest.mark.slow
def test_each_rank_steps_on_its_rows_and_a_resumed_run_goes_on_to_the_last_bit(tmp_path: Path) -> None:
    assert run_ranks(train_in_8_bits, 2, tmp_path, None, slice(0, 4), "whole") == [0, 0], errors_of(tmp_path)
    assert run_ranks(train_in_8_bits, 2, tmp_path, None, slice(0, 2), "first") == [0, 0], errors_of(tmp_path)
    assert run_ranks(train_in_8_bits, 2, tmp_path, "first", slice(2, 4), "second") == [0, 0], errors_of(tmp_path)
    for rank in range(2):
        file = f"rank-{rank}-of-2.safetensors"
        found, expected = (load_file(tmp_path / name / file) for name in ("second", "whole"))
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        assert {value.dtype for name, value in found.items() if name.startswith("rows/state1/")} == {
            torch.uint8,
            torch.float32,  # of rows with less than 4096 values
        }
    policy, exact = made_policy(), made_policy()
    for chosen in (policy, exact):
        chosen.model.float()
    batches = made_batches(made_policy())
    expected = train(exact, make_adamw(trainable(exact), lr=1e-3), batches, local_passes)
    for ours, theirs in zip(json.loads((tmp_path / "whole-0.json").read_text()), expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-3)  # of AdamW with float32 moments
    with pytest.raises(CheckpointError, match=r"8-bit moments in the blocks of 2 ranks, which 1 cannot .*ranks=2"):
        load_sharded(policy, make_adamw(trainable(policy), kind="adamw_8bit"), tmp_path / "whole")
    codes = run_ranks(train_in_8_bits, 3, tmp_path, "whole", slice(0), "third")
    assert codes == [1, 1, 1]
    assert "in the blocks of 2 ranks, which 3 cannot divide; resume with train.ranks=2" in errors_of(tmp_path)


def test_moments_of_another_kind_or_of_one_process_are_refused(tmp_path: Path) -> None:
    """The rows of this process alone, which is all of them."""
    policy = made_policy()
    policy.model.float()
    before = whole_weights(policy)
    adamw = optimizer_of(policy)
    own = LocalShards(type(make_adamw(trainable(policy), kind="adamw_8bit")), [{"params": trainable(policy)}], lr=1e-3)
    save_sharded(policy, adamw, tmp_path / "adamw")
    save_sharded(policy, own, tmp_path / "8-bit")
    with pytest.raises(
        CheckpointError, match=r"saved with optimizer\.kind=adamw and cannot be resumed with adamw_8bit"
    ):
        load_sharded(policy, own, tmp_path / "adamw")
    with pytest.raises(
        CheckpointError, match=r"saved with optimizer\.kind=adamw_8bit and cannot be resumed with adamw"
    ):
        load_sharded(policy, adamw, tmp_path / "8-bit")
    save_whole(policy, adamw, tmp_path / "whole")
    with pytest.raises(CheckpointError, match=r"in the blocks of one process, which ranks cannot .* train\.ranks=1"):
        load_whole_optimizer(own, tmp_path / "whole" / "stepper")
    assert all(torch.equal(weight, before[name]) for name, weight in whole_weights(policy).items())
