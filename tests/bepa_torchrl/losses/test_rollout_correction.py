"""Truncated importance correction: weights and metrics worked out by hand, and their effect on the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase

from bepa_torchrl import functional as F
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import stack_rows
from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.policies.tensordict_io import ResponseDistribution

#: log(3/2), log(4), log(1/2), and a masked position
DIFFERENCE = torch.tensor([[math.log(1.5), math.log(4.0), math.log(0.5), 9.0]])
MASK = torch.tensor([[True, True, True, False]])


def test_token_weights_by_hand() -> None:
    assert F.truncated_importance(DIFFERENCE, MASK, cap=2.0).tolist() == [pytest.approx([1.5, 2.0, 0.5, 1.0])]


def test_sequence_weights_by_hand() -> None:
    """The product is 3/2 * 4 * 1/2 = 3."""
    assert F.truncated_importance(DIFFERENCE, MASK, cap=5.0, level="sequence").tolist() == [
        pytest.approx([3.0, 3.0, 3.0, 1.0])
    ]
    assert F.truncated_importance(DIFFERENCE, MASK, cap=2.0, level="sequence").max().item() == 2.0


def test_weights_have_no_gradient() -> None:
    difference = DIFFERENCE.clone().requires_grad_()
    assert not F.truncated_importance(difference, MASK).requires_grad


@pytest.mark.parametrize("options", [{"level": "step"}, {"cap": 0.0}, {"cap": -1.0}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"level must be one of token, sequence|cap .* must be positive"):
        F.truncated_importance(DIFFERENCE, MASK, **options)


class FixedActor(torch.nn.Module):
    """Two rows; log-probs under the current weights: [-1, -1] and [-1]."""

    scoring_keys = (K.RESPONSE_TOKENS,)

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(()))
        self.in_keys, self.out_keys = [K.RESPONSE_TOKENS], ["logits"]

    def get_dist(self, rows: TensorDictBase, logits_key: str = "logits") -> ResponseDistribution:
        del logits_key
        mask = torch.tensor([[True, True], [False, True]])[: len(rows)]
        return ResponseDistribution((self.shift - 1.0).expand(mask.shape) * mask, mask, torch.zeros(mask.shape))


def rows_of(sampled: list[list[float]], off_policy: tuple[bool, ...] = (False, False)) -> TensorDictBase:
    """One group of two one-step episodes with advantages 1 and -1; ``sampled``: the sampler's log-probs."""
    rows = [
        TensorDict(
            {
                K.RESPONSE_TOKENS: torch.ones(len(values), dtype=torch.int64),
                K.ROLLOUT_LOG_PROB: torch.tensor(values),
                K.OLD_LOG_PROB: torch.full((len(values),), -1.0),
                K.ADVANTAGE: torch.tensor([[1.0 - 2 * slot]]),
                K.OFF_POLICY: torch.tensor([off_policy[slot]]),
                K.GROUP_ID: torch.tensor(0),
                K.SLOT: torch.tensor(slot),
                K.IMAGES: NonTensorData(()),
            }
        )
        for slot, values in enumerate(sampled)
    ]
    return stack_rows(rows)


SAMPLED = [[-1.0 - math.log(1.5), -1.0 - math.log(4.0)], [-1.0 + math.log(2.0)]]  # weights 3/2, 4 → 2; 1/2


def loss_of(rows: TensorDictBase, **options: Any) -> Any:
    loss = BEPALoss(FixedActor(), aggregation="token", **options)
    rows.set(K.DENOMINATOR, loss.denominators(rows))
    return loss(rows)


@pytest.mark.parametrize("old_policy", ["stored", "current"])
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("off", -1 - 1 + 1),
        ("measure", -1 - 1 + 1),
        ("token", -1.5 - 2.0 + 0.5),
        ("sequence", -2.0 - 2.0 + 0.5),  # 3/2 * 4 = 6 → 2
    ],
)
def test_the_loss_by_hand(level: str, expected: float, old_policy: str) -> None:
    """Ratios are 1, so that a token's loss is minus its weight times the advantage, over 3 tokens."""
    out = loss_of(rows_of(SAMPLED), rollout_correction=level, old_policy=old_policy)
    assert out.loss_objective.item() == pytest.approx(expected / 3, abs=1e-6)


def test_the_metrics_by_hand() -> None:
    """The differences are log 3/2, log 4 and -log 2."""
    out = loss_of(rows_of(SAMPLED), rollout_correction="token")
    ratios = [1.5, 4.0, 0.5]
    assert out.rollout_kl_on_policy.item() == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / 3, abs=1e-6)
    assert out.rollout_difference_max_on_policy.item() == pytest.approx(math.log(4.0), abs=1e-6)
    assert out.rollout_weight_mean_on_policy.item() == pytest.approx((1.5 + 2.0 + 0.5) / 3, abs=1e-6)
    assert loss_of(rows_of(SAMPLED)).rollout_kl_on_policy is None


def test_injected_rows_have_weight_one() -> None:
    out = loss_of(rows_of(SAMPLED, (True, False)), rollout_correction="token")
    assert out.loss_objective.item() == pytest.approx((-1 - 1 + 0.5) / 3, abs=1e-6)
    assert out.rollout_difference_max_on_policy.item() == pytest.approx(math.log(2.0), abs=1e-6)


def test_a_cap_below_one_leaves_injected_rows_alone() -> None:
    """Weights of the injected row 1; of the other row min(1/2, cap)."""
    for cap, weight in ((0.75, 0.5), (0.25, 0.25)):
        out = loss_of(rows_of(SAMPLED, (True, False)), rollout_correction="token", rollout_cap=cap)
        assert out.loss_objective.item() == pytest.approx((-1 - 1 + weight) / 3, abs=1e-6)


def test_an_unknown_correction_is_refused() -> None:
    with pytest.raises(ValueError, match="rollout_correction must be off, measure, token or sequence; got 'tis'"):
        BEPALoss(FixedActor(), rollout_correction="tis")
    with pytest.raises(ValueError, match="must be positive"):
        BEPALoss(FixedActor(), rollout_cap=0.0)
