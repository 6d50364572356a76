"""SFTLoss: token cross-entropy of given responses, without advantage or old policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torchrl.objectives.common import LossModule

from bepa_torchrl.data import keys
from bepa_torchrl.losses.output import SFTLossOutput
from bepa_torchrl.losses.rows import (
    at_least_single,
    check_batch,
    denominators_of,
    padded,
    response_lengths,
    response_mask,
    scoring_keys,
)


class SFTLoss(LossModule):
    """Minus the mean log-probability of the response tokens. Paper appendix "SFT on Converted Expert Traces".

    Like :class:`BEPALoss` it divides by the rows' denominators, so that losses of micro-batches add up.

    Args:
        actor_network: as in :class:`BEPALoss`.
    """

    @dataclass
    class _AcceptedKeys(LossModule._AcceptedKeys):
        action: NestedKey = keys.RESPONSE_TOKENS
        denominator: NestedKey = keys.DENOMINATOR

    default_keys = _AcceptedKeys
    out_keys = ["loss_sft", "units", "units_off_policy", "log_prob_off_policy"]  # noqa: RUF012 - TorchRL's name and type
    actor_network: TensorDictModuleBase

    def __init__(self, actor_network: TensorDictModuleBase) -> None:
        super().__init__()
        self.actor_network = actor_network
        self._forward_value_estimator_keys()

    def _forward_value_estimator_keys(self, **kwargs: NestedKey) -> None:  # noqa: ARG002 - called by set_keys
        own = [self.tensor_keys.action, self.tensor_keys.denominator]
        self.in_keys = list(dict.fromkeys([*scoring_keys(self.actor_network), *own]))

    def make_value_estimator(self, value_type: Any = None, **hyperparams: Any) -> NoReturn:
        """Raises NotImplementedError: this loss has no advantages."""
        raise NotImplementedError(
            f"SFTLoss has no value estimator, got {value_type} {hyperparams}: it has no advantages; leave the call out"
        )

    def denominators(self, rows: TensorDictBase) -> Tensor:
        """All response tokens of the optimiser step, on each of its rows: ``[R, 1]`` float32."""
        total = response_lengths(rows, self.tensor_keys.action).sum().clamp_min(1)
        return torch.full((len(rows), 1), float(total))

    def forward(self, tensordict: TensorDictBase) -> SFTLossOutput:
        """``loss_sft`` of a (micro-)batch of rows ``[B]``, with its number of tokens.

        Raises:
            KeyError: the response tokens or the denominator are missing.
            ValueError: no rows, a batch other than a lazy stack ``[B]``, a denominator that is not positive, or an
                actor with mismatching shapes.
            NotImplementedError: in ``torch.vmap``.
        """
        check_batch(tensordict, self.tensor_keys.action)
        rows = tensordict.copy()
        denominator = denominators_of(rows, self.tensor_keys.denominator)
        dist = self.actor_network.get_dist(rows, logits_key="logits")
        log_prob = at_least_single(dist.log_prob(padded(rows, self.tensor_keys.action, fill=-100)))
        mask = response_mask(dist, log_prob)
        denominator = denominator.to(log_prob.device)
        summed = torch.where(mask, log_prob, 0.0).sum(-1, keepdim=True)
        units = mask.sum().float()
        return SFTLossOutput(
            loss_sft=-(summed / denominator).sum(),
            units=units,
            units_off_policy=units,
            log_prob_off_policy=summed.detach().sum() / units,
            batch_size=[],
        )
