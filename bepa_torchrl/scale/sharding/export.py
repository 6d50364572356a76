"""The whole weights of a sharded policy: one at a time, or as a checkpoint folder."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_tensor, wait_tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from bepa_torchrl.policies.finite import NonFiniteError, not_finite
from bepa_torchrl.policies.transformers.checkpoint import no_progress_bars
from bepa_torchrl.policies.transformers.lora import adapter_weights, merged_weights, save_adapter, save_merged
from bepa_torchrl.policies.transformers.policy import ADAPTER_FOLDER, TransformersPolicy
from bepa_torchrl.training.rank_failures import rank_failures
from osworld_gym.atomic import new_folder

#: bytes of the weights that one collective operation gathers, unless a single one has more
_CHUNK = 1 << 28


@torch.no_grad()
def gathered_weights(policy: TransformersPolicy, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor) of every weight under the names of a saved checkpoint, tied ones under each name.

    Of a policy with adapters, whose other weights are frozen: of the adapters' weights alone, by parameter name.

    Every rank iterates to the end, and has at most 0.3 GB of whole tensors at a time, or one, on its device.

    Args:
        policy: the sharded policy.
        dtype: in which floating-point weights are sent, the same on every rank; None: their own.

    Raises:
        RankLostError: another rank has exited or is late.
    """
    chunk: list[tuple[str, DTensor]] = []
    for name, weight in (adapter_weights(policy.model) or policy.model.state_dict()).items():
        if not isinstance(weight, DTensor):
            yield name, weight.detach()
            continue
        sent = weight.detach().to(dtype if dtype is not None and weight.is_floating_point() else weight.dtype)
        if chunk and (chunk[0][1].dtype != sent.dtype or sum(part.nbytes for _, part in chunk) + sent.nbytes > _CHUNK):
            yield from _gather(chunk)
            chunk = []
        assert isinstance(sent, DTensor)
        chunk.append((name, sent))
    if chunk:
        yield from _gather(chunk)


@torch.no_grad()
def gathered_merged_weights(policy: TransformersPolicy) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor) of every weight under the names of a saved checkpoint, adapters merged.

    The counterpart of ``policy.named_weights()``. Every rank iterates to the end, and has one whole tensor at a time,
    with the adapters of its layer, on its device; nothing is kept.

    Raises:
        RankLostError: another rank has exited or is late.
    """
    yield from merged_weights(policy.model, _Gathered(policy.model.state_dict()))


class _Gathered(Mapping[str, Tensor]):
    """A sharded state whose tensors are gathered when they are read: by all ranks, in the same order."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Tensor:
        weight = self._state[name]
        with rank_failures():
            return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach()

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def _gather(chunk: Sequence[tuple[str, DTensor]]) -> Iterator[tuple[str, Tensor]]:
    """The whole tensors of weights of one dtype, by one collective operation.

    The first ranks have equally many rows, one has the rest, and any further ones have none: with what is missing sent
    as padding, all ranks' rows in order are the whole tensor and padding after it.
    """
    group = chunk[0][1].device_mesh.get_group()
    ranks = dist.get_world_size(group)
    sizes = [-(-weight.shape[0] // ranks) * math.prod(weight.shape[1:]) for _, weight in chunk]
    parts = [weight.to_local().reshape(-1) for _, weight in chunk]
    pad = torch.nn.functional.pad
    sent = torch.cat([pad(part, (0, size - len(part))) for part, size in zip(parts, sizes, strict=True)])
    with rank_failures():
        received = wait_tensor(all_gather_tensor(sent, 0, group))
    for (name, weight), rows in zip(chunk, received.view(ranks, -1).split(sizes, dim=1), strict=True):
        yield name, rows.reshape(-1)[: weight.numel()].view(weight.shape)


def export_policy(
    policy: TransformersPolicy, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None, wait: bool = True
) -> Path:
    """Writes the checkpoint folder that ``policy.save`` writes; every rank calls it, rank 0 writes.

    The weights are gathered one at a time into the memory of rank 0's host.

    Args:
        policy: the sharded policy.
        path: the folder; does not exist.
        dtype: the dtype of the written weights, read on rank 0; None: the policy's.
        wait: whether the other ranks return when the folder is complete, not before: the disk must be fast enough for
            the group's timeout then.

    Raises:
        FileExistsError: on every rank that sees ``path``; nothing is overwritten.
        NonFiniteError: on every rank, if a weight is NaN or infinite in this dtype; nothing is written.
        RankLostError: another rank has exited or is late, for example because it could not write.
    """
    target = Path(path)
    if target.exists():
        raise FileExistsError(f"{target} exists; checkpoints are not overwritten: name another folder")
    with rank_failures():
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights: dict[str, Any] = get_model_state_dict(policy.model, options=options)  # empty on the other ranks
        if dist.get_rank() == 0:
            tied = _tied(policy.model)
            weights = {name: weight for name, weight in weights.items() if name not in tied}
            adapters = {name: weights[name] for name in adapter_weights(policy.model)}
            if adapters:
                weights = dict(merged_weights(policy.model, weights))
            if dtype is not None:
                weights = {name: weight.to(dtype) for name, weight in weights.items()}
        bad = torch.tensor(len(not_finite(weights.items())), device=policy.device)
        dist.broadcast(bad, src=0)
        if bad:
            raise NonFiniteError(f"{target} is not written: {int(bad)} weights have elements that are not finite")
        if dist.get_rank() == 0:
            with new_folder(target) as folder:
                with no_progress_bars():
                    if adapters:
                        save_merged(policy.model, folder, weights)
                        save_adapter(policy.model, folder / ADAPTER_FOLDER, adapters)
                    else:
                        policy.model.save_pretrained(folder, state_dict=weights)
                if dtype is not None:
                    _write_dtype(folder / "config.json", dtype)
                policy.renderer.processor.tokenizer.save_pretrained(folder)
                policy.renderer.processor.patcher.processor.save_pretrained(folder)
        if wait:
            dist.barrier()
    return target


def _tied(model: torch.nn.Module) -> set[str]:
    """Further names of tied parameters, which ``save_pretrained`` leaves out if they share memory."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return names - {name for name, _ in model.named_parameters()}


def _write_dtype(path: Path, dtype: torch.dtype) -> None:
    """Sets the dtype in a model's config.json and its parts, which have that of the shards."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        if "dtype" in part:
            part["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
