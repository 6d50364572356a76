"""8-bit AdamW on ranks: each updates its rows like plain tensors; for another number of them its state is rounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from process_groups import errors_of, run_ranks
from safetensors.torch import load_file
from sharded_training import made_batches, made_policy, optimizer_of, save_whole, train, train_in_8_bits, whole_weights
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.scale.sharding.checkpoints.sharded import load_sharded, save_sharded
from bepa_torchrl.scale.sharding.checkpoints.whole import load_whole_optimizer
from bepa_torchrl.training.adam_8bit import AdamW8bit, moments_of
from bepa_torchrl.training.local_shards import LocalShards
from bepa_torchrl.training.optimization_step import local_passes, trainable
from bepa_torchrl.training.precision import make_adamw, master_of


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


def float_policy() -> Any:
    policy = made_policy()
    policy.model.float()
    return policy


def adam_8bit(policy: Any) -> Any:
    return make_adamw(trainable(policy), kind="adamw_8bit", lr=1e-3)


def moments_by_name(policy: Any, optimizer: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """First and second moments in float32, of an optimiser in one process."""
    states = {name: optimizer.state[master_of(optimizer, weight)] for name, weight in policy.model.named_parameters()}
    return {name: moments_of(state) for name, state in states.items() if state}


def moments_in(folder: Path, ranks: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The same, of the files of a checkpoint."""
    rows: dict[str, list[dict[str, torch.Tensor]]] = {}
    for rank in range(ranks):
        states: dict[str, dict[str, torch.Tensor]] = {}
        for key, value in load_file(folder / f"rank-{rank}-of-{ranks}.safetensors").items():
            if key.startswith("rows/"):
                _, kind, name = key.split("/", 2)
                states.setdefault(name, {})[kind] = value
        for name, state in states.items():
            rows.setdefault(name, []).append(state)
    return {
        name: (torch.cat([moments_of(s)[0] for s in parts]), torch.cat([moments_of(s)[1] for s in parts]))
        for name, parts in rows.items()
    }


def assert_rounded_once(found: Any, expected: Any) -> None:
    """Each moment differs by a rounding to 8 bits: at most by 1/32 of the largest one, and mostly by far less."""
    assert found.keys() == expected.keys()
    for name, pair in expected.items():
        for ours, theirs in zip(found[name], pair, strict=True):
            difference, largest = (ours - theirs).abs(), theirs.abs().max()
            assert float(difference.max()) <= float(largest) / 32, name
            assert float(difference.mean()) <= float(theirs.abs().mean()) / 32, name


@pytest.mark.slow
def test_moments_go_from_one_process_to_two_ranks_to_three_and_back(tmp_path: Path) -> None:
    """Rounded at each change of their number; the losses are those of one process, to the accuracy of 8 bits."""
    alone, first, last = float_policy(), float_policy(), float_policy()
    batches = made_batches(made_policy())
    expected = train(alone, adam_8bit(alone), batches, local_passes)
    optimizer = adam_8bit(first)
    found = train(first, optimizer, batches[:1], local_passes)
    save_whole(first, optimizer, tmp_path / "one")
    steps = ((2, "one", slice(1, 1), "moved"), (2, "one", slice(1, 2), "two"), (3, "two", slice(2, 3), "three"))
    for ranks, source, part, target in steps:
        codes = run_ranks(train_in_8_bits, ranks, tmp_path, source, part, target, source == "one")
        assert codes == [0] * ranks, errors_of(tmp_path)
        found += json.loads((tmp_path / f"{target}-0.json").read_text())
    assert_rounded_once(moments_in(tmp_path / "moved", 2), moments_by_name(first, optimizer))
    optimizer = adam_8bit(last)
    load_sharded(last, optimizer, tmp_path / "three")
    assert_rounded_once(moments_by_name(last, optimizer), moments_in(tmp_path / "three", 3))
    found += train(last, optimizer, batches[3:], local_passes)
    assert {int(state["step"]) for state in optimizer.state.values()} == {4}
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-3)


@pytest.mark.slow
def test_half_precision_weights_of_one_process_get_the_moments_of_two_ranks(tmp_path: Path) -> None:
    """Their float32 masters have the moments."""
    assert run_ranks(train_in_8_bits, 2, tmp_path, None, slice(0, 1), "two") == [0, 0], errors_of(tmp_path)
    policy = made_policy()
    policy.model.bfloat16()
    optimizer = adam_8bit(policy)
    load_sharded(policy, optimizer, tmp_path / "two")
    assert_rounded_once(moments_by_name(policy, optimizer), moments_in(tmp_path / "two", 2))


def test_moments_of_another_kind_are_refused(tmp_path: Path) -> None:
    """The rows of this process alone, which is all of them."""
    policy = float_policy()
    before = whole_weights(policy)
    adamw = optimizer_of(policy)
    own = LocalShards(AdamW8bit, [{"params": trainable(policy)}], lr=1e-3)
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
    batches = made_batches(made_policy())
    train(policy, adamw, batches[:1], local_passes)
    save_whole(policy, adamw, tmp_path / "whole")
    other = float_policy()
    train(other, eight := adam_8bit(other), batches[:1], local_passes)
    save_whole(other, eight, tmp_path / "whole-8-bit")
    before = whole_weights(policy)
    for optimizer, source in ((own, "whole"), (adamw, "whole-8-bit")):
        with pytest.raises(CheckpointError, match=r"not of this AdamW .* resume with the policy, optimizer\.kind"):
            load_whole_optimizer(optimizer, tmp_path / source / "stepper")
    assert all(torch.equal(weight, before[name]) for name, weight in whole_weights(policy).items())
