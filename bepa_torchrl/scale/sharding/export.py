"""The whole weights of a sharded policy: one at a time, or as a checkpoint folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from bepa_torchrl.policies.finite import NonFiniteError, not_finite
from bepa_torchrl.policies.transformers.checkpoint import no_progress_bars
from bepa_torchrl.policies.transformers.lora import adapter_weights, merged_weights, save_adapter, save_merged
from bepa_torchrl.policies.transformers.policy import ADAPTER_FOLDER, TransformersPolicy
from bepa_torchrl.training.rank_failures import rank_failures
from osworld_gym.atomic import new_folder


@torch.no_grad()
def gathered_weights(policy: TransformersPolicy) -> Iterator[tuple[str, Tensor]]:
    """(name, whole tensor) of every weight under the names of a saved checkpoint, tied ones under each name.

    Of a policy with adapters, whose other weights are frozen: of the adapters' weights alone, by parameter name.

    Every rank iterates to the end, and has one whole tensor at a time, on its device.

    Raises:
        RankLostError: another rank has exited or is late.
    """
    yield from _Gathered(adapter_weights(policy.model) or policy.model.state_dict()).items()


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


def export_policy(
    policy: TransformersPolicy, path: str | os.PathLike[str], *, dtype: torch.dtype | None = None
) -> Path:
    """Writes the checkpoint folder that ``policy.save`` writes; every rank calls it, rank 0 writes.

    The weights are gathered one at a time into the memory of rank 0's host. Ranks return when the folder is complete.

    Args:
        policy: the sharded policy.
        path: the folder; does not exist.
        dtype: of the written weights, read on rank 0; None: the policy's.

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
