"""AdamW with 8-bit moments, from bitsandbytes (the extra ``adam8bit``); importing this module imports bitsandbytes.

The moments are quantised in blocks of 256 values with a float32 scale each (Dettmers et al. 2022, arXiv:2110.02861):
2.03 bytes per parameter instead of 8. Tensors of less than 4096 values keep float32 moments. The updates are close to
AdamW's, not equal. Of weights that are divided over ranks, the blocks are of each rank's rows, so that updates depend
on the number of ranks, too, by as little. A checkpoint's moments are rounded once more for another number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from bitsandbytes.functional import dequantize_blockwise, quantize_blockwise
from bitsandbytes.optim import AdamW8bit
from torch import Tensor

from bepa_torchrl.training.precision import MasterWeights


class MasterAdamW8bit(MasterWeights, AdamW8bit):
    """8-bit AdamW on float32 copies of the given weights, see :class:`~bepa_torchrl.training.precision.MasterWeights`.

    Per trained half-precision parameter: 2 (weight) + 4 (gradient) + 4 (master) + 2.03 (moments) bytes.
    """


BLOCK = 256  #: values with one scale


def moments_of(state: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The first and second moments in float32, in the weight's shape, of its state in the optimiser."""
    first, second = (_moment(state, number) for number in (1, 2))
    return first, second


def _moment(state: Mapping[str, Tensor], number: int) -> Tensor:
    values = state[f"state{number}"]
    if values.dtype != torch.uint8:
        return values
    scales, code = state[f"absmax{number}"], state[f"qmap{number}"]
    moment: Tensor = dequantize_blockwise(values, absmax=scales, code=code, blocksize=BLOCK)
    return moment.reshape(values.shape)


@torch.no_grad()
def set_moments(optimizer: AdamW8bit, weight: Tensor, step: int, moments: tuple[Tensor, Tensor]) -> None:
    """Replaces a weight's state by these float32 moments of its shape, rounded to the optimiser's own blocks.

    Args:
        optimizer: one of plain tensors.
        weight: a member of its ``param_groups``.
        step: number of steps that it has made.
        moments: the first and the second.
    """
    where = {
        id(member): (group, i, j)
        for i, group in enumerate(optimizer.param_groups)
        for j, member in enumerate(group["params"])
    }
    group, i, j = where[id(weight)]
    optimizer.init_state(group, weight, i, j)
    state = optimizer.state[weight]
    state["step"] = step
    for number, moment in enumerate(moments, start=1):
        values = state[f"state{number}"]
        if values.dtype == torch.uint8:
            code, scales = state[f"qmap{number}"], state[f"absmax{number}"]
            quantize_blockwise(moment.to(values.device), code=code, absmax=scales, out=values, blocksize=BLOCK)
        else:
            values.copy_(moment)


__all__ = ["BLOCK", "AdamW8bit", "MasterAdamW8bit", "moments_of", "set_moments"]
