"""Checkpoints of a sharded policy and its optimiser, resumed on any number of processes.

    rank-0-of-2.safetensors     rank 0's shards: model/<name>, exp_avg/<name>, exp_avg_sq/<name>, step/<name>
    rank-1-of-2.safetensors
    sharded.json                written last: policy version, number of files, each tensor's shape

Of a policy with adapters the adapters' weights alone are saved, as in one process.
8-bit moments are those of a rank's rows (:mod:`bepa_torchrl.scale.sharding.checkpoints.moments_8bit`).
A shard is a range of a tensor's first dimension; the file's metadata has its first row. torch's own distributed
checkpoints have the same layout, but their index is a pickle.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.policies.finite import NonFiniteError, is_finite
from bepa_torchrl.policies.transformers.lora import adapter_weights
from bepa_torchrl.scale.sharding.checkpoints.moments_8bit import (
    divide_states,
    has_8bit_moments,
    load_rows_states,
    rows_states,
)
from bepa_torchrl.scale.sharding.checkpoints.row_ranges import Part, join_rows, local_rows
from bepa_torchrl.training.local_shards import LocalShards
from bepa_torchrl.training.precision import master_of
from bepa_torchrl.training.rank_failures import rank_failures
from osworld_gym.atomic import new_folder

SHARDS_FOLDER = "shards"  #: in the folder of a run's checkpoint component
_INDEX = "sharded.json"
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def save_sharded(policy: Any, optimizer: Optimizer, path: str | os.PathLike[str]) -> Path:
    """Writes a checkpoint folder, which all ranks see (a shared disk); every rank calls it and writes its shards.

    Args:
        policy: sharded (:func:`bepa_torchrl.scale.sharding.policy.shard_policy`) or whole.
        optimizer: AdamW of the policy's parameters; of half-precision ones the float32 masters are saved.

    Raises:
        FileExistsError: ``path`` exists; nothing is overwritten.
        RankLostError: another rank has exited or is late; ``path`` does not exist then.
        NonFiniteError: a weight or moment of a rank is NaN or infinite, on every rank; nothing is written.
    """
    tensors = _tensors(policy, optimizer)
    _check_finite(tensors)
    target, rank, ranks = Path(path), _rank(), _ranks()
    if target.exists():
        raise FileExistsError(f"{target} exists; checkpoints are not overwritten: name another folder")
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    shards, starts = {}, {}
    for name, tensor in tensors.items():
        local, start = local_rows(tensor)
        if len(local) and (rank == 0 or isinstance(tensor, DTensor)):
            shards[name], starts[name] = local.detach().cpu().contiguous(), str(start)
    if isinstance(optimizer, LocalShards):
        shards |= rows_states(saved_parameters(policy), optimizer)
    save_file(shards, partial / _file(rank, ranks), metadata=starts)
    _barrier()
    if rank == 0:
        index = {
            "policy_version": policy.version,
            "ranks": ranks,
            "blocks": isinstance(optimizer, LocalShards),
            "shapes": {name: list(_row_shape(tensor)) for name, tensor in tensors.items()},
        }
        with new_folder(target) as folder:
            for shard in range(ranks):
                (partial / _file(shard, ranks)).rename(folder / _file(shard, ranks))
            (folder / _INDEX).write_text(json.dumps(index))
        for left in partial.iterdir():
            left.unlink()  # of a save by more ranks that did not finish
        partial.rmdir()
    _barrier()
    return target


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raises NonFiniteError on every rank if a part of one of them is not finite."""
    bad = torch.tensor([not is_finite(tensor) for tensor in tensors.values()], dtype=torch.int32)
    if dist.is_initialized():
        bad = bad.to(next(iter(tensors.values())).device)
        with rank_failures():
            dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    names = [name for name, wrong in zip(tensors, bad.tolist(), strict=True) if wrong]
    if names:
        raise NonFiniteError(
            f"{len(names)} weights and moments have elements that are not finite, such as {names[0]}; "
            "go on from a checkpoint before (resume=true), with a lower optimizer.lr"
        )


@torch.no_grad()
def load_sharded(policy: Any, optimizer: Optimizer, path: str | os.PathLike[str]) -> None:
    """Loads a checkpoint of any number of processes, in place; each rank reads its own rows of each tensor.

    Args:
        policy: sharded over any number of ranks, or whole, of the same architecture and trained parameters.
        optimizer: AdamW of its parameters, with or without float32 masters; learning rates and other options stay
            those of this optimiser.

    Raises:
        CheckpointError: the folder is incomplete, or of another model or kind of optimiser; nothing is changed.
    """
    source = Path(path)
    try:
        index = json.loads((source / _INDEX).read_text())
        files = [source / _file(rank, index["ranks"]) for rank in range(index["ranks"])]
        handles = [safe_open(file, framework="pt") for file in files]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise CheckpointError(f"{source} is no complete sharded checkpoint: {error}") from error
    tensors = _tensors(policy, optimizer)
    expected = {name: list(_row_shape(tensor)) for name, tensor in tensors.items()}
    saved = {name: shape for name, shape in index["shapes"].items() if name.startswith("model/")}
    if saved != {name: shape for name, shape in expected.items() if name.startswith("model/")}:
        raise CheckpointError(f"{source} is of another model: names or shapes of its weights differ")
    _check_kind(index, optimizer, source)
    rows = _read(handles, index["shapes"], policy, optimizer)
    for name, parameter in saved_parameters(policy).items():
        updated = master_of(optimizer, parameter)
        for weight in (parameter, updated):
            local_rows(weight)[0].copy_(rows[f"model/{name}"])
        if f"step/{name}" in rows:
            state = optimizer.state[updated]
            state["step"] = rows[f"step/{name}"][0]
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros_like(updated)
                local_rows(state[moment])[0].copy_(rows[f"{moment}/{name}"])
    if isinstance(optimizer, LocalShards) and index["ranks"] == _ranks():
        load_rows_states(handles[_rank()], saved_parameters(policy), optimizer)
    elif has_8bit_moments(optimizer):
        divide_states(handles, saved_parameters(policy), optimizer)
    policy.version = int(index["policy_version"])


def load_component(policy: Any, optimizer: Optimizer, folder: Path) -> None:
    """:func:`load_sharded` from the folder of a run's checkpoint component."""
    load_sharded(policy, optimizer, folder / SHARDS_FOLDER)


def _check_kind(index: Mapping[str, Any], optimizer: Optimizer, source: Path) -> None:
    """Raises CheckpointError if moments of 8 bits were saved and the optimiser has others, or the other way round."""
    blocks = index.get("blocks", False)
    if blocks != has_8bit_moments(optimizer):
        saved, own = ("adamw_8bit", "adamw") if blocks else ("adamw", "adamw_8bit")
        raise CheckpointError(f"{source} was saved with optimizer.kind={saved} and cannot be resumed with {own}")


def _read(handles: list[Any], shapes: dict[str, list[int]], policy: Any, optimizer: Optimizer) -> dict[str, Tensor]:
    """This rank's rows of every saved tensor of a trained or frozen parameter."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    rows = {}
    for name, parameter in saved_parameters(policy).items():
        local, start = local_rows(parameter)
        kinds = ("model", *_MOMENTS) if id(master_of(optimizer, parameter)) in trained else ("model",)
        for kind in kinds:
            key = f"{kind}/{name}"
            if key in shapes:
                first, count = (0, 1) if kind == "step" else (start, len(local))
                rows[key] = _rows(handles, key, first, count, shapes[key])
    return rows


def _rows(handles: list[Any], key: str, start: int, count: int, shape: list[int]) -> Tensor:
    """Rows ``start`` to ``start + count`` of a tensor, from the files whose shards overlap them."""
    if not count:
        return torch.zeros(0, *shape[1:])
    firsts = [(handle, (handle.metadata() or {}).get(key)) for handle in handles]
    shards = [(int(first), handle.get_slice(key)) for handle, first in firsts if first is not None]
    return join_rows([Part(first, shard.get_shape()[0], shard) for first, shard in shards], start, count, key)


def saved_parameters(policy: Any) -> dict[str, Tensor]:
    """What a checkpoint has: all parameters, or the adapters' if there are any, since the others are frozen then."""
    return adapter_weights(policy.model) or dict(policy.model.named_parameters())


def _tensors(policy: Any, optimizer: Optimizer) -> dict[str, Tensor]:
    """Weights and AdamW's state; scalars as ``[1]``."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in saved_parameters(policy).items():
        tensors[f"model/{name}"] = updated = master_of(optimizer, parameter)
        state = optimizer.state.get(updated, {})
        tensors |= {f"{kind}/{name}": state[kind] for kind in _MOMENTS if kind in state}
    return tensors


def _row_shape(tensor: Tensor) -> torch.Size:
    return tensor.shape if tensor.ndim else torch.Size([1])


def _file(rank: int, ranks: int) -> str:
    return f"rank-{rank}-of-{ranks}.safetensors"


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _barrier() -> None:
    if dist.is_initialized():
        with rank_failures():
            dist.barrier()
