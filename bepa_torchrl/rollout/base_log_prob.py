"""BaseLogProb: log-probs of the policy's own rows under the base policy, for the divergence term of the loss.

Runs after :class:`~bepa_torchrl.rollout.trace_replacement.TraceReplacement`; each row is scored once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from tensordict import TensorDictBase
from torchrl.envs.transforms import Transform

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import is_trained, row_list

#: sets BASE_LOG_PROB of rows, which have none, to their log-probs under the base policy
FillBase = Callable[[Sequence[TensorDictBase]], None]


class BaseLogProb(Transform):
    """Sets BASE_LOG_PROB ``[L]`` float32, nats; NaN on injected and replayed rows, which the term leaves out.

    Args:
        fill: scores the policy's own rows.

    ``forward`` raises as ``fill`` does.
    """

    def __init__(self, fill: FillBase) -> None:
        super().__init__()
        self._fill = fill

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The same batch ``[R]``, with BASE_LOG_PROB in every row."""
        own = []
        for row in row_list(tensordict):
            if bool(row.get(K.OFF_POLICY)) or not is_trained(row):
                row.set(K.BASE_LOG_PROB, torch.full((len(row[K.RESPONSE_TOKENS]),), torch.nan))
            else:
                own.append(row)
        self._fill(own)
        return tensordict
