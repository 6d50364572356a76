"""LocalShards: an optimiser that knows plain tensors only, on weights that are divided over ranks.

An element-wise optimiser needs no other rank: each rank updates its own rows. One with state per block of values
(8-bit moments) has other blocks than in one process, so that its state is converted for another number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary


class LocalShards(Optimizer):
    """An optimiser of this rank's rows of the given weights.

    ``param_groups`` has the weights themselves, so that gradients are clipped over all ranks; options that are changed
    there hold from the next step on.

    Args:
        inner: the class of the optimiser of plain tensors.
        groups: parameter groups of float32 weights, sharded or whole.
        **options: of the optimiser.
    """

    def __init__(self, inner: Callable[..., Optimizer], groups: list[dict[str, Any]], **options: Any) -> None:
        copies = [{**group, "params": [_rows_of(weight) for weight in group["params"]]} for group in groups]
        self.inner = inner(copies, **options)  #: the optimiser of this rank's rows
        super().__init__(groups, self.inner.defaults)
        self._rows = WeakIdKeyDictionary(
            {
                weight: rows
                for group, copied in zip(groups, copies, strict=True)
                for weight, rows in zip(group["params"], copied["params"], strict=True)
            }
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step on this rank's rows. Raises ValueError for a closure, which the inner optimiser would not see."""
        if closure is not None:
            raise ValueError("LocalShards.step takes no closure; compute the gradients first")
        for group, copied in zip(self.param_groups, self.inner.param_groups, strict=True):
            copied.update({name: value for name, value in group.items() if name != "params"})
            for weight, rows in zip(group["params"], copied["params"], strict=True):
                if weight.grad is not None and rows.numel():
                    rows.grad = weight.grad.to_local() if isinstance(weight.grad, DTensor) else weight.grad
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        return None

    def rows(self, weight: Tensor) -> Tensor:
        """This rank's rows of a weight, as :attr:`inner` has them."""
        rows: Tensor = self._rows[weight]
        return rows

    def rows_state(self, weight: Tensor) -> dict[str, Tensor]:
        """What the optimiser has for this rank's rows of a weight, copied to the CPU; numbers, as the step, as ``[]``.

        Empty before the first step, and for a rank without rows of it.
        """
        state: Mapping[str, Any] = self.inner.state.get(self._rows[weight], {})
        return {name: torch.as_tensor(value).detach().to("cpu", copy=True) for name, value in state.items()}

    def set_rows_state(self, weight: Tensor, state: Mapping[str, Tensor]) -> None:
        """Replaces it by what :meth:`rows_state` returned for the same rows."""
        rows = self._rows[weight]
        self.inner.state[rows] = {
            name: value.item() if not value.ndim else value.to(rows.device, copy=True) for name, value in state.items()
        }


def _rows_of(weight: Tensor) -> torch.nn.Parameter:
    """This rank's rows, which share memory with the weight. Raises ValueError if they are not contiguous."""
    rows = weight.detach()
    rows = rows.to_local() if isinstance(rows, DTensor) else rows
    if not rows.is_contiguous():
        raise ValueError("LocalShards expects weights that are divided along their first dimension")
    return torch.nn.Parameter(rows)
