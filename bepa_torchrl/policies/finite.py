"""Checks that weights, or an optimiser's state, are finite before they are written or used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class NonFiniteError(RuntimeError):
    """Training has diverged: gradients or weights are not finite."""


def is_finite(tensor: Tensor) -> bool:
    """Whether every element is finite; integers are. One pass, without a temporary of the tensor's size."""
    local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not (local.is_floating_point() and local.numel()):
        return True
    return bool(torch.isfinite(local.detach().sum(dtype=torch.float64)))


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Names of the tensors with an element that is NaN or infinite; of sharded ones this rank's part is looked at."""
    return [name for name, tensor in tensors if not is_finite(tensor)]


def check_finite(tensors: Iterable[tuple[str, Tensor]], what: str) -> None:
    """Checks that tensors may be saved or used.

    Args:
        tensors: (name, tensor); of sharded ones this rank's part is looked at.
        what: what they are, for the message.

    Raises:
        NonFiniteError: one has an element that is NaN or infinite.
    """
    bad = not_finite(tensors)
    if bad:
        raise NonFiniteError(
            f"{what}: {len(bad)} tensors have elements that are not finite, such as {bad[0]}; "
            "go on from a checkpoint before (resume=true), with a lower optimizer.lr"
        )
