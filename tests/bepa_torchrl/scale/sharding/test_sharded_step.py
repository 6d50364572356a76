"""Optimiser steps on 2 and 3 processes have the scalars and weights of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from process_groups import errors_of, run_ranks
from safetensors.torch import load_file
from sharded_training import (
    gather_weights,
    made_batches,
    made_policy,
    meet_a_gradient_that_is_not_finite,
    optimizer_of,
    score_in_half_precision,
    take_steps_with_terms,
    tokens_of,
    train,
    train_alone,
    train_sharded,
    train_with_terms,
)

from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.rollout.old_log_prob import fill_old_log_probs
from bepa_torchrl.training.optimization_step import local_passes

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (2, {}),
        (3, {"activation_checkpointing": True}),
        (2, {"train_vision": False}),
        (2, {"frozen": ("layers.0", "visual.blocks.0.attn")}),
        (2, {"family": "qwen3_vl"}),
        (2, {"lora": Lora(rank=4, alpha=8)}),
    ],
    ids=["two", "three-recomputed", "two-frozen-tower", "two-frozen-layers", "two-qwen3", "two-adapters"],
)
def test_steps_equal_those_of_one_process(tmp_path: Path, ranks: int, options: dict[str, Any]) -> None:
    """Ranks have unequal passes, a group has no signal, and one batch is a single episode."""
    assert run_ranks(train_sharded, ranks, tmp_path, options) == [0] * ranks, errors_of(tmp_path)
    expected, weights = train_alone(options)
    found = [json.loads((tmp_path / f"outputs-{rank}.json").read_text()) for rank in range(ranks)]
    assert all(outputs == found[0] for outputs in found)
    for step, (ours, alone) in enumerate(zip(found[0], expected, strict=True)):
        for name in alone.keys() - {"micro_batches"}:
            assert ours[name] == pytest.approx(alone[name], abs=1e-5), (step, name)
    assert found[0][2]["passes_per_rank"] * ranks > found[0][2]["micro_batches"]
    assert all(outputs["grad_norm"] > 0.01 for outputs in expected)
    trained = load_file(tmp_path / "weights.safetensors")
    assert trained.keys() == weights.keys()
    assert max(float((trained[name] - weights[name]).abs().max()) for name in weights) < 1e-5


def test_every_rank_knows_what_the_others_computed_for_each_token(tmp_path: Path) -> None:
    """The record and ``injected/js`` are of all rows, and not of those that rank 0 happened to compute."""
    assert run_ranks(train_sharded, 2, tmp_path, {}) == [0, 0], errors_of(tmp_path)
    policy = made_policy()
    batches = made_batches(policy)
    train(policy, optimizer_of(policy), batches, local_passes)
    expected = tokens_of(batches[-1])
    assert {type(tokens) for tokens in expected} == {tuple, type(None)}, "rows without a signal are not computed"
    for rank in range(2):
        found = json.loads((tmp_path / f"tokens-{rank}.json").read_text())
        for ours, alone in zip(found, expected, strict=True):
            assert (ours is None) == (alone is None)
            if alone is not None:
                assert ours[0] == pytest.approx(alone[0], abs=1e-5)
                assert ours[1] == alone[1]


def test_the_terms_of_two_ranks_are_those_of_one_process(tmp_path: Path) -> None:
    """The base is the policy without its adapters, on every rank."""
    assert run_ranks(train_with_terms, 2, tmp_path) == [0, 0], errors_of(tmp_path)
    policy = made_policy(lora=Lora(rank=4, alpha=8))
    batches = made_batches(policy)[:1] * 2
    expected = take_steps_with_terms(policy, batches, local_passes, fill_old_log_probs)
    found = json.loads((tmp_path / "outputs.json").read_text())
    for ours, alone in zip(found, expected, strict=True):
        for name in ("loss_kl_to_ref", "kl_to_ref", "loss_entropy", "entropy", "grad_norm"):
            assert ours[name] == pytest.approx(alone[name], abs=1e-5), name
    assert expected[0]["kl_to_ref"] == pytest.approx(0.0, abs=1e-6)
    assert expected[1]["kl_to_ref"] > 1e-6


def test_gradients_may_be_summed_once_per_step(tmp_path: Path) -> None:
    """The same scalars and weights, of steps with more passes than one."""
    arguments: tuple[dict[str, Any], None, str] = ({}, None, "step")
    assert run_ranks(train_sharded, 2, tmp_path, *arguments) == [0, 0], errors_of(tmp_path)
    expected, weights = train_alone({})
    found = json.loads((tmp_path / "outputs-0.json").read_text())
    for ours, alone in zip(found, expected, strict=True):
        for name in alone.keys() - {"micro_batches"}:
            assert ours[name] == pytest.approx(alone[name], abs=1e-5), name
    trained = load_file(tmp_path / "weights.safetensors")
    assert max(float((trained[name] - weights[name]).abs().max()) for name in weights) < 1e-5
    assert sum(output["passes_per_rank"] for output in found) > len(found)


@pytest.mark.parametrize("options", [{}, {"lora": Lora(rank=4, alpha=8)}, {"train_vision": False}])
def test_whole_weights_are_gathered_in_a_few_parts(tmp_path: Path, options: dict[str, Any]) -> None:
    """On 3 ranks, over which no number of rows is divided evenly."""
    assert run_ranks(gather_weights, 3, tmp_path, options) == [0] * 3, errors_of(tmp_path)


def test_half_precision_passes_keep_the_weights_precision(tmp_path: Path) -> None:
    """The first gradient norm differs by rounding; weights and their export keep the policy's dtype."""
    options = {"train_vision": False}
    assert run_ranks(train_sharded, 2, tmp_path, options, torch.bfloat16) == [0, 0], errors_of(tmp_path)
    expected, weights = train_alone(options)
    found = json.loads((tmp_path / "outputs-0.json").read_text())
    assert found[0]["grad_norm"] == pytest.approx(expected[0]["grad_norm"], rel=0.1)
    assert found[0]["grad_norm"] != pytest.approx(expected[0]["grad_norm"], rel=1e-5)
    trained = load_file(tmp_path / "weights.safetensors")
    decoder = [name for name in weights if "visual" not in name]
    assert all(trained[name].dtype == weights[name].dtype for name in decoder)


@pytest.mark.parametrize("frozen", [(), ("visual",)], ids=["trained-tower", "frozen-tower"])
def test_half_precision_passes_are_those_of_a_half_precision_checkpoint(
    tmp_path: Path, frozen: tuple[str, ...]
) -> None:
    """Buffers stay float32 (rotary frequencies): the same rounding as in one process."""
    assert run_ranks(score_in_half_precision, 1, tmp_path, frozen) == [0], errors_of(tmp_path)


def test_a_gradient_that_is_not_finite_on_one_rank_is_applied_on_none(tmp_path: Path) -> None:
    assert run_ranks(meet_a_gradient_that_is_not_finite, 2, tmp_path) == [0, 0], errors_of(tmp_path)
