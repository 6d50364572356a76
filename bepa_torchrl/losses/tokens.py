"""What a loss computes for each token, written into the rows for the run's record."""

from __future__ import annotations

import torch
from tensordict import TensorDictBase

from bepa_torchrl.data import keys as K
from bepa_torchrl.losses.inputs import LossInputs, Objective


@torch.no_grad()
def write_tokens(rows: TensorDictBase, inputs: LossInputs, objective: Objective) -> None:
    """Sets LOG_PROB (float32 ``[L]``, nats) and CLIPPED (bool ``[L]``) of rows ``[B]``, on the CPU, as the rows are.

    Args:
        rows: as they were passed to the loss.
        inputs: units are tokens.
        objective: the objective of these inputs.
    """
    mask = inputs.mask.cpu()
    log_prob, clipped = inputs.log_prob.float().cpu(), objective.clipped.cpu()
    for index, row in enumerate(rows.unbind(0)):
        row.set(K.LOG_PROB, log_prob[index][mask[index]])
        row.set(K.CLIPPED, clipped[index][mask[index]])
