"""AdamW with 8-bit moments, from bitsandbytes (the extra ``adam8bit``); importing this module imports bitsandbytes.

The moments are quantised in blocks of 256 values with a float32 scale each (Dettmers et al. 2022, arXiv:2110.02861):
2.03 bytes per parameter instead of 8. Tensors of less than 4096 values keep float32 moments. The updates are close to
AdamW's, not equal. Of weights that are divided over ranks, the blocks are of each rank's rows, so that updates depend
on the number of ranks, too, by as little.
"""

from __future__ import annotations

from bitsandbytes.optim import AdamW8bit

from bepa_torchrl.training.precision import MasterWeights


class MasterAdamW8bit(MasterWeights, AdamW8bit):
    """8-bit AdamW on float32 copies of the given weights, see :class:`~bepa_torchrl.training.precision.MasterWeights`.

    Per trained half-precision parameter: 2 (weight) + 4 (gradient) + 4 (master) + 2.03 (moments) bytes.
    """


__all__ = ["AdamW8bit", "MasterAdamW8bit"]
