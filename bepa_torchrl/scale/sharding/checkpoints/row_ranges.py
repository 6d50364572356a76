"""Rows of tensors that are divided over ranks: this rank's, and those that several saved parts have together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torchrl.checkpoint import CheckpointError


class Part(NamedTuple):
    """Consecutive rows of a tensor."""

    first: int  #: index of the first one
    size: int  #: number of rows
    values: Any  #: a tensor, or a safetensors slice, of which only the needed rows are read


def local_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """This rank's rows (a view), and the index of the first one."""
    if not isinstance(tensor, DTensor):
        return (tensor if tensor.ndim else tensor[None]), 0
    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local: Tensor = tensor.to_local()
    return local, offset[0] if offset else 0


def join_rows(parts: Iterable[Part], start: int, count: int, name: str) -> Tensor:
    """Rows ``start`` to ``start + count`` of a tensor, ``count`` at least 1, from the parts that overlap them.

    Raises:
        CheckpointError: the parts of the tensor ``name`` lack some of them.
    """
    overlaps = []
    for part in sorted(parts, key=lambda part: part.first):
        low, high = max(start, part.first), min(start + count, part.first + part.size)
        if low < high:
            overlaps.append(part.values[low - part.first : high - part.first])
    if sum(map(len, overlaps)) != count:
        raise CheckpointError(f"the shards of {name} are incomplete: restore the folder from a copy")
    return torch.cat(overlaps)
