"""A few optimiser steps of a small policy, in one process or sharded: what the ranks of the sharding tests run."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from history_rows import ShortPromptPolicy, made_episodes
from safetensors.torch import save_file
from tensordict import TensorDictBase
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import row_list, stack_rows
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.policies.finite import NonFiniteError
from bepa_torchrl.policies.transformers.lora import Lora, adapter_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.scale.sharding import export
from bepa_torchrl.scale.sharding.checkpoints.sharded import load_sharded, save_sharded
from bepa_torchrl.scale.sharding.checkpoints.whole import load_whole_optimizer, load_whole_weights
from bepa_torchrl.scale.sharding.export import export_policy
from bepa_torchrl.scale.sharding.gradient import GradientSync, ShardedPasses
from bepa_torchrl.scale.sharding.policy import shard_policy
from bepa_torchrl.scale.sharding.process_group import join_process_group
from bepa_torchrl.storage.state import save_state
from bepa_torchrl.testing import small_checkpoint
from bepa_torchrl.training.checkpoint import PolicyWeights
from bepa_torchrl.training.local_shards import LocalShards
from bepa_torchrl.training.optimization_step import GroupStepper, gradient_step, has_signal, local_passes, trainable
from bepa_torchrl.training.precision import make_adamw

STEPS = (3, 1, 2, 4, 2, 1)
MAX_TOKENS = 260


def rank() -> int:
    """This process's rank."""
    return int(os.environ["RANK"])


def made_policy(*, frozen: Sequence[str] = (), **options: Any) -> ShortPromptPolicy:
    """The policy of all tests here."""
    policy = ShortPromptPolicy(max_new_tokens=6, **options)
    trainable(policy, frozen=frozen)
    return policy


def made_batches(policy: ShortPromptPolicy) -> list[TensorDictBase]:
    """Batches of three groups, the second without a signal; of one group; of one episode (ranks without rows)."""
    rows = made_episodes(policy, STEPS)
    for row in row_list(rows):
        if int(row[K.GROUP_ID]) == 1:
            row[K.ADVANTAGE] = torch.zeros(1, 1)
    first = stack_rows(row for row in row_list(rows) if int(row[K.GROUP_ID]) == 0)
    alone = stack_rows(row for row in row_list(rows) if int(row[K.GROUP_ID]) == 0 and int(row[K.SLOT]) == 0)
    return [rows, first, alone, rows]


def optimizer_of(policy: ShortPromptPolicy) -> torch.optim.AdamW:
    """Made after sharding."""
    return torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-3, eps=1e-4)


def train(
    policy: ShortPromptPolicy, optimizer: torch.optim.Optimizer, batches: list[TensorDictBase], passes: Any
) -> list[dict[str, float]]:
    """One optimiser step per batch; the scalars of each."""
    loss = BEPALoss(policy, keep_tokens=True)
    outputs = []
    for batch in batches:
        outputs.append(
            gradient_step(
                loss,
                optimizer,
                batch,
                keep=has_signal(batch, loss),
                max_tokens=MAX_TOKENS,
                clip_norm=0.5,
                passes=passes,
            )
        )
    return outputs


def whole_weights(policy: ShortPromptPolicy) -> dict[str, torch.Tensor]:
    """All weights, on every rank."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {name: value.clone() for name, value in get_model_state_dict(policy.model, options=options).items()}


def tokens_of(batch: TensorDictBase) -> list[tuple[list[float], list[bool]] | None]:
    """What the last step computed for each token of each row: log-probs, and whether its ratio was clipped."""
    return [
        (row[K.LOG_PROB].tolist(), row[K.CLIPPED].tolist()) if K.LOG_PROB in row else None for row in row_list(batch)
    ]


def train_sharded(
    folder: Path,
    options: dict[str, Any],
    compute_dtype: torch.dtype | None = None,
    gradient_sync: GradientSync = "pass",
) -> None:
    """A rank: trains, and rank 0 writes the scalars and weights."""
    join_process_group(timeout=60)
    policy = made_policy(**options)
    batches = made_batches(policy)
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    shard_policy(policy, mesh, compute_dtype=compute_dtype)
    passes = ShardedPasses(mesh, gradient_sync=gradient_sync)
    outputs = train(policy, optimizer_of(policy), batches, passes)
    (folder / f"outputs-{rank()}.json").write_text(json.dumps(outputs))
    (folder / f"tokens-{rank()}.json").write_text(json.dumps(tokens_of(batches[-1])))
    weights = whole_weights(policy)
    if rank() == 0:
        save_file(weights, folder / "weights.safetensors")


def train_alone(options: dict[str, Any]) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """The same in this process."""
    policy = made_policy(**options)
    batches = made_batches(policy)
    outputs = train(policy, optimizer_of(policy), batches, local_passes)
    return outputs, whole_weights(policy)


def train_with_terms(folder: Path) -> None:
    """A rank: two steps with a divergence from the base, the policy without its adapters, and an entropy bonus."""
    join_process_group(timeout=60)
    policy = made_policy(lora=Lora(rank=4, alpha=8))
    batches = made_batches(policy)[:1] * 2
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    shard_policy(policy, mesh)
    outputs = take_steps_with_terms(policy, batches, ShardedPasses(mesh), ShardedPasses(mesh).fill_old_log_probs)
    if rank() == 0:
        (folder / "outputs.json").write_text(json.dumps(outputs))


def take_steps_with_terms(
    policy: ShortPromptPolicy, batches: list[TensorDictBase], passes: Any, fill: Any
) -> list[dict[str, float]]:
    """The scalars of each step; the base's log-probs are computed before each, and are the same."""
    loss, optimizer = BEPALoss(policy, kl_weight=0.5, entropy_weight=0.2), optimizer_of(policy)
    outputs, found = [], []
    for batch in batches:
        rows = row_list(batch)
        with policy.as_base():
            fill(policy, rows, max_tokens=MAX_TOKENS, key=K.BASE_LOG_PROB)
        found.append(torch.cat([row[K.BASE_LOG_PROB] for row in rows]))
        keep = has_signal(batch, loss)
        outputs.append(gradient_step(loss, optimizer, batch, keep=keep, max_tokens=MAX_TOKENS, passes=passes))
    assert torch.equal(found[0], found[1])
    return outputs


def gather_weights(folder: Path, options: dict[str, Any]) -> None:
    """A rank: whole weights, gathered one by one, in a few parts, and in half precision, are those before sharding."""
    join_process_group(timeout=60)
    policy = made_policy(**options)
    before = {name: weight.detach().clone() for name, weight in policy.model.state_dict().items()}
    shard_policy(policy, init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),)))
    counts = []
    for chunk, dtype in ((1, None), (1 << 20, None), (1 << 28, torch.bfloat16)):
        with patch.object(export, "_CHUNK", chunk), CommDebugMode() as operations:
            found = {name: weight.clone() for name, weight in export.gathered_weights(policy, dtype)}
        counts.append(operations.get_total_counts())
        assert found.keys() == (adapter_weights(policy.model).keys() or before.keys())
        for name, weight in found.items():
            own = before[name] if dtype is None or (".visual." in name and options) else before[name].to(dtype)
            assert torch.equal(weight.to(own.dtype), own), name
    assert counts[0] > counts[1] >= counts[2] == 1
    (folder / f"counts-{rank()}.json").write_text(json.dumps(counts))


def score_in_half_precision(folder: Path, frozen: Sequence[str]) -> None:
    """The only rank: scores with a sharded policy whose passes are bfloat16, and with the checkpoint in bfloat16."""
    join_process_group(timeout=60)
    path = TransformersPolicy(small_checkpoint(spread=0.1), preset="compact").save(folder / "checkpoint")
    whole, sharded = (load_policy(path, dtype=dtype, preset="compact") for dtype in (torch.bfloat16, torch.float32))
    for policy in (whole, sharded):
        trainable(policy, frozen=frozen)
    shard_policy(sharded, init_device_mesh("cpu", (1,)), compute_dtype=torch.bfloat16)
    rows = made_episodes(whole, (1, 2))
    with torch.no_grad():
        found, expected = (policy.get_dist(rows).log_probs for policy in (sharded, whole))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def resume_sharded(
    folder: Path, source: str | None, batches: slice, target: str, options: dict[str, Any] | None = None
) -> None:
    """A rank: loads ``source`` if given, trains on a part of the batches, saves ``target`` and exports the policy."""
    join_process_group(timeout=60)
    policy = made_policy(**(options or {}))
    every = made_batches(policy)
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    shard_policy(policy, mesh)
    optimizer = optimizer_of(policy)
    if source is not None:
        load_sharded(policy, optimizer, folder / source)
    train(policy, optimizer, every[batches], ShardedPasses(mesh))
    policy.version += len(every[batches])
    save_sharded(policy, optimizer, folder / target)
    export_policy(policy, folder / f"{target}-exported")


def train_and_export(folder: Path, options: dict[str, Any]) -> None:
    """A rank: trains on all batches and exports the policy in float32."""
    join_process_group(timeout=60)
    policy = made_policy(**options)
    batches = made_batches(policy)
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    shard_policy(policy, mesh)
    train(policy, optimizer_of(policy), batches, ShardedPasses(mesh))
    export_policy(policy, folder / "exported", dtype=torch.float32)


def save_whole(policy: ShortPromptPolicy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """The weights and the optimiser's state as in the checkpoint of a run in one process."""
    for part in ("weights", "stepper"):
        (folder / part).mkdir(parents=True)
    PolicyWeights(policy).dump(folder / "weights")
    save_state(folder / "stepper", GroupStepper(policy, optimizer).state_dict())


def resume_whole(folder: Path, source: str, batches: slice, target: str, options: dict[str, Any]) -> None:
    """A rank: loads what :func:`save_whole` wrote, trains on a part of the batches, saves ``target``."""
    join_process_group(timeout=60)
    made = {key: value for key, value in options.items() if key != "dtype"}
    policy = made_policy(**made)
    every = made_batches(policy)
    if "dtype" in options:
        policy.model.float()
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    shard_policy(policy, mesh)
    optimizer = optimizer_of(policy)
    load_whole_weights(policy, folder / source / "weights")
    load_whole_optimizer(optimizer, folder / source / "stepper")
    outputs = train(policy, optimizer, every[batches], ShardedPasses(mesh))
    policy.version += len(outputs)
    save_sharded(policy, optimizer, folder / target)
    if rank() == 0:
        (folder / f"{target}.json").write_text(json.dumps(outputs))


def train_in_8_bits(folder: Path, source: str | None, batches: slice, target: str, whole: bool = False) -> None:
    """A rank: as :func:`resume_sharded` with 8-bit AdamW in float32, compared with plain tensors of its rows.

    ``whole``: ``source`` is what :func:`save_whole` wrote.
    """
    join_process_group(timeout=60)
    policy = made_policy()
    every = made_batches(policy)
    policy.model.float()
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
    shard_policy(policy, mesh)
    optimizer = make_adamw(trainable(policy), kind="adamw_8bit", lr=1e-3)
    assert isinstance(optimizer, LocalShards)
    if source is not None and whole:
        load_whole_weights(policy, folder / source / "weights")
        load_whole_optimizer(optimizer, folder / source / "stepper")
    elif source is not None:
        load_sharded(policy, optimizer, folder / source)
    weights = [weight for weight in trainable(policy) if weight.to_local().numel()]
    plain = [torch.nn.Parameter(weight.to_local().detach().clone()) for weight in weights]
    reference = make_adamw(plain, kind="adamw_8bit", lr=1e-3)
    outputs = []
    for batch in every[batches]:
        outputs += train(policy, optimizer, [batch], ShardedPasses(mesh))
        if source is None:
            for weight, copy in zip(weights, plain, strict=True):
                copy.grad = weight.grad.to_local().clone()  # clipped, as the step left it
            reference.step()
            assert all(torch.equal(weight.to_local(), copy) for weight, copy in zip(weights, plain, strict=True))
    assert any(optimizer.rows_state(weight)["state1"].dtype == torch.uint8 for weight in weights)
    policy.version += len(outputs)
    save_sharded(policy, optimizer, folder / target)
    (folder / f"{target}-{rank()}.json").write_text(json.dumps(outputs))


def meet_a_gradient_that_is_not_finite(folder: Path) -> None:
    """In the second of three steps the gradient of rank 1's rows is NaN: no rank takes it; nor saves NaN weights."""
    join_process_group(timeout=60)
    policy = made_policy()
    batches = made_batches(policy)[:1] * 3
    mesh = init_device_mesh("cpu", (2,))
    shard_policy(policy, mesh)
    optimizer = optimizer_of(policy)
    weight = next(p for p in policy.parameters() if p.requires_grad and p.to_local().numel())
    outputs, states = [], []
    for number, batch in enumerate(batches):
        hook = weight.register_post_accumulate_grad_hook(_spoil) if number == 1 and rank() == 1 else None
        outputs += train(policy, optimizer, [batch], ShardedPasses(mesh))
        states.append((whole_weights(policy), float(optimizer.state[weight]["step"])))
        if hook is not None:
            hook.remove()
    assert [output["steps_not_finite"] for output in outputs] == [0.0, 1.0, 0.0]
    assert [steps for _, steps in states] == [1.0, 1.0, 2.0]
    assert all(torch.equal(value, states[0][0][name]) for name, value in states[1][0].items())
    moved = [not torch.equal(value, states[1][0][name]) for name, value in states[2][0].items()]
    assert any(moved) or rank() > 0  # the whole weights are rank 0's
    assert all(torch.isfinite(value).all() for value in states[2][0].values())
    if rank() == 1:
        with torch.no_grad():
            weight.to_local().view(-1)[0] = torch.nan
    with pytest.raises(NonFiniteError, match="1 weights and moments have elements that are not finite"):
        save_sharded(policy, optimizer, folder / "saved")
    with pytest.raises(NonFiniteError, match="exported is not written: 1 weights have elements that are not finite"):
        export_policy(policy, folder / "exported")
    assert not (folder / "saved").exists()
    assert not (folder / "exported").exists()


def _spoil(weight: Any) -> None:
    weight.grad.to_local().fill_(torch.nan)


def lose_a_rank(folder: Path, how: str) -> None:
    """Rank 0 saves a checkpoint and steps again; rank 1 exits, or stops answering, after the first step."""
    join_process_group(timeout=15)
    policy = made_policy()
    batches = made_batches(policy)[1:2]
    mesh = init_device_mesh("cpu", (2,))
    shard_policy(policy, mesh)
    optimizer = optimizer_of(policy)
    train(policy, optimizer, batches, ShardedPasses(mesh))
    save_sharded(policy, optimizer, folder / "saved")
    if rank() == 1:
        if how == "exits":
            os._exit(9)
        threading.Event().wait(10)
        os._exit(9)
    train(policy, optimizer, batches, ShardedPasses(mesh))


def hold_different_rows(folder: Path) -> None:
    """Rank 1 has another advantage; old log-probs are then computed, once the rows are the same again."""
    join_process_group(timeout=60)
    policy = made_policy()
    (batch,) = made_batches(policy)[1:2]
    mesh = init_device_mesh("cpu", (2,))
    shard_policy(policy, mesh)
    before = whole_weights(policy)
    rows = row_list(batch)
    advantage = rows[0][K.ADVANTAGE]
    rows[0][K.ADVANTAGE] = advantage + rank()
    with pytest.raises(ValueError, match="the ranks hold different rows"):
        train(policy, optimizer_of(policy), [stack_rows(rows)], ShardedPasses(mesh))
    assert all(torch.equal(value, before[name]) for name, value in whole_weights(policy).items())
    rows[0][K.ADVANTAGE] = advantage
    ShardedPasses(mesh).fill_old_log_probs(policy, rows, max_tokens=MAX_TOKENS)
    save_file({str(i): row[K.OLD_LOG_PROB] for i, row in enumerate(rows)}, folder / f"old-{rank()}.safetensors")
