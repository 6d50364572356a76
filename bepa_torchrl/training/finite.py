"""What keeps NaN and infinity out of the weights: optimiser steps that are not taken, and what is logged of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from tensordict import TensorDictBase
from torch import Tensor
from torch.optim import Optimizer
from torchrl.objectives.common import LossModule

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import stack_rows
from bepa_torchrl.losses.rows import NAMED_ROWS, row_name
from bepa_torchrl.policies.finite import NonFiniteError

_log = logging.getLogger(__name__)
#: optimiser steps in a row that may have a gradient that is not finite; the next one ends the run
STEPS_IN_A_ROW = 3


class FiniteSteps:
    """Counts optimiser steps that were not taken, since their gradient was not finite.

    Args:
        in_a_row: that many are tolerated one after the other.
    """

    def __init__(self, in_a_row: int = STEPS_IN_A_ROW) -> None:
        self.in_a_row, self._now = in_a_row, 0

    def count(self, output: Mapping[str, float]) -> None:
        """Counts a step by what ``gradient_step`` returned of it; one without rows was none, and is no interruption.

        Raises:
            NonFiniteError: it is one too many.
        """
        if output.get("rows_computed") == 0:
            return
        self._now = self._now + 1 if output.get("steps_not_finite") else 0
        if self._now > self.in_a_row:
            raise NonFiniteError(
                f"the gradient of {self._now} optimiser steps in a row was not finite (train.nonfinite_steps="
                f"{self.in_a_row} are tolerated); the weights are those before them. Lower optimizer.lr, or look at "
                "the rows that the log names"
            )


def warn_not_taken(norm: float, loss: LossModule, rows: Sequence[TensorDictBase]) -> None:
    """Logs one line with the gradient's norm and the rows that explain it best."""
    _log.warning("optimiser step not taken: its gradient's norm is %g; %s", norm, suspects(loss, rows))


@torch.no_grad()
def suspects(loss: LossModule, rows: Sequence[TensorDictBase]) -> str:
    """The rows with the most extreme values, each computed by itself.

    First those whose own loss is not finite, then those with the largest importance ratio. Rows of a policy that is
    divided over ranks cannot be computed by one of them: those with the least old log-prob are named.
    """
    sharded = any(hasattr(parameter, "full_tensor") for parameter in loss.parameters())
    extremes = [(_stored(row) if sharded else _computed(loss, row), row) for row in rows]
    extremes.sort(key=lambda pair: -pair[0][0])
    return "; ".join(f"{row_name(row)}: {text}" for (_, text), row in extremes[:NAMED_ROWS])


def _computed(loss: LossModule, row: TensorDictBase) -> tuple[float, str]:
    """How extreme a row is, and the value that says so."""
    output = {key: value.item() for key, value in loss(stack_rows([row])).to_tensordict().items()}
    total = sum(value for key, value in output.items() if key.startswith("loss_"))
    if not math.isfinite(total):
        return math.inf, f"loss {total:g}"
    ratio = max((v for k, v in output.items() if k.startswith("ratio_max_") and not math.isnan(v)), default=0.0)
    return ratio, f"importance ratio up to {ratio:.3g}, loss {total:.3g}"


def _stored(row: TensorDictBase) -> tuple[float, str]:
    old = row.get(K.OLD_LOG_PROB, None)
    least = float(old.min()) if old is not None and old.numel() else 0.0
    return -least, f"least old log-prob {least:.3g}"


def optimizer_tensors(optimizer: Optimizer) -> Iterable[tuple[str, Tensor]]:
    """What an optimiser updates and its state, with names."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        yield f"parameter {number}", parameter
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                yield f"{name} of parameter {number}", value
