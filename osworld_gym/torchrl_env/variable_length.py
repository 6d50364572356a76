"""VariableLength: the spec of text and bytes, which have no fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import NonTensorData, is_non_tensor
from torchrl.data import NonTensor


class VariableLength(NonTensor):
    """Spec of one string (or bytes object) of any length per row: shape ``[*batch, -1]``, its values ``[*batch]``.

    The -1 is TorchRL's mark of a dimension without a fixed size. TorchRL reads it from an environment's specs, also
    through transforms and from workers (``_has_dynamic_specs``), and then preallocates no buffers, which could hold
    neither text nor a policy's tokens of varying number. ``NonTensor(shape=[*batch])`` would claim a fixed size.

    Args:
        shape: the batch dimensions, and -1.
        device: any; text is on none.
        dtype: always None, since text has none.
        example_data: the value of ``rand``, ``zero`` and ``one``.
        feature_dims: set by TorchRL on copies, not used.
    """

    def __init__(
        self,
        shape: Sequence[int],
        device: Any = None,
        dtype: Any = None,
        example_data: str | bytes = "",
        feature_dims: int | None = None,
    ) -> None:
        del feature_dims
        super().__init__(torch.Size(shape), device=device, dtype=dtype, example_data=example_data)

    def rand(self, shape: Sequence[int] | int | None = None) -> NonTensorData:
        """``example_data`` for each row, ``[*shape, *batch]``; also of ``zero`` and ``one``."""
        more = () if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
        return NonTensorData(self.example_data, batch_size=[*more, *self.shape[:-1]], device=self.device)

    def is_in(self, val: Any) -> bool:
        """Whether ``val`` is a non-tensor entry ``[*batch]``."""
        return bool(is_non_tensor(val) and val.shape == self.shape[:-1])
