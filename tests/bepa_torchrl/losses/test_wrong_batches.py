"""What a loss says to a batch that it cannot read: expected, given and fix, in one line."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase, lazy_stack
from tensordict.nn import TensorDictModuleBase
from torchrl.modules.llm.policies.common import LogProbDistribution

from bepa_torchrl import functional as F
from bepa_torchrl.data import keys as K
from bepa_torchrl.losses import BEPALoss, LUFFYLoss, RLSFTLoss, SFTLoss

LOSSES = [BEPALoss, LUFFYLoss, RLSFTLoss, SFTLoss]


class UniformActor(TensorDictModuleBase):
    """Each token has log-probability log(weight)."""

    def __init__(self) -> None:
        super().__init__()
        self.in_keys, self.out_keys = [K.RESPONSE_TOKENS], [K.OLD_LOG_PROB]
        self.weight = torch.nn.Parameter(torch.tensor(0.5))

    def get_dist(self, rows: TensorDictBase, logits_key: str = "logits") -> LogProbDistribution:  # noqa: ARG002
        lengths = torch.tensor([len(row[K.RESPONSE_TOKENS]) for row in rows.unbind(0)])
        mask = torch.arange(int(lengths.max()))[None] >= lengths.max() - lengths[:, None]
        return LogProbDistribution(torch.where(mask, self.weight.log(), math.nan), mask)


def rows_of(*lengths: int) -> TensorDictBase:
    """Rows ``[B]`` with these response lengths, all ready for a loss."""
    return lazy_stack(
        [
            TensorDict(
                {
                    K.RESPONSE_TOKENS: torch.zeros(length, dtype=torch.int64),
                    K.OLD_LOG_PROB: torch.full((length,), math.log(0.5)),
                    K.ADVANTAGE: torch.ones(1, 1),
                    K.OFF_POLICY: torch.tensor([False]),
                    K.DENOMINATOR: torch.ones(1),
                    K.GROUP_ID: torch.tensor(0),
                    K.SLOT: torch.tensor(slot),
                }
            )
            for slot, length in enumerate(lengths)
        ]
    )


def calls(loss: Any) -> list[Callable[[TensorDictBase], Any]]:
    return [loss, loss.denominators]


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (rows_of(1, 2)[:0], "expected at least one row, got an empty batch; skip the update"),
        (TensorDict({}, [0]), "expected at least one row, got an empty batch; skip the update"),
        (rows_of(2)[0], r"expected rows \[B\], got batch size \[\]; .* lazy_stack\(\[row\]\)"),
        (lazy_stack([rows_of(2, 1)] * 3), r"expected rows \[B\], got batch size \[3, 2\]; flatten them: rows\.reshape"),
        (rows_of(1, 2).densify(layout=torch.jagged), r"nested tensor; use lazy_stack\(list\(rows\.unbind\(0\)\)\)"),
    ],
    ids=["empty lazy stack", "empty", "one row", "two dimensions", "jagged"],
)
def test_a_batch_of_another_form_is_refused_with_the_fix(kind: Any, rows: TensorDictBase, message: str) -> None:
    for call in calls(kind(UniformActor())):
        with pytest.raises(ValueError, match=message) as caught:
            call(rows)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "call", "keys"),
    [
        (BEPALoss, "denominators", [K.RESPONSE_TOKENS, K.GROUP_ID, K.SLOT]),
        (RLSFTLoss, "denominators", [K.OFF_POLICY]),
        (SFTLoss, "denominators", [K.RESPONSE_TOKENS]),
        (partial(BEPALoss, anchor_weight=1.0), "anchor_weights", [K.RETURN, K.OFF_POLICY, K.GROUP_ID]),
        (partial(BEPALoss, distill_weight=1.0), "distill_weights", [K.PLAN_LOG_PROB, K.OFF_POLICY]),
        (partial(BEPALoss, kl_weight=1.0), "rows_with_terms", [K.OFF_POLICY]),
    ],
)
def test_what_is_set_once_per_step_names_the_missing_entry(loss: Any, call: str, keys: list[Any]) -> None:
    rows = rows_of(1, 2).set(K.RETURN, torch.ones(2, 1)).set(K.PLAN_LOG_PROB, torch.zeros(2, 1))
    for key in keys:
        left = lazy_stack([row.exclude(key) for row in rows.unbind(0)])
        with pytest.raises(KeyError) as caught:
            getattr(loss(UniformActor()), call)(left)
        assert caught.value.args[0].startswith(f"rows require {key!r}; they have [")


@pytest.mark.parametrize("kind", LOSSES)
def test_the_named_fixes_work(kind: Any) -> None:
    """Dense rows of equal length, unbound nested rows, flattened rows: the loss of the lazy stack."""
    loss, rows = kind(UniformActor()), rows_of(2, 2)
    fixed = [
        torch.stack(list(rows.unbind(0))),
        lazy_stack(list(rows.densify(layout=torch.jagged).unbind(0))),
        lazy_stack([rows]).reshape(-1),
    ]
    for batch in fixed:
        assert loss.denominators(batch).equal(loss.denominators(rows))
        for name, value in loss(rows).to_tensordict().items():
            torch.testing.assert_close(loss(batch).get(name), value, equal_nan=True)


@pytest.mark.parametrize("kind", LOSSES)
def test_vmap_is_refused(kind: Any) -> None:
    """Over rows, and over weights."""
    loss, rows = kind(UniformActor()), rows_of(2, 2)
    batches = torch.stack([torch.stack(list(rows.unbind(0)))] * 3)
    weights = TensorDict.from_module(loss.actor_network).data.expand(3).clone()

    def with_weights(given: TensorDictBase) -> Any:
        with given.to_module(loss.actor_network):
            return loss(rows)

    for call, value in ((loss, batches), (with_weights, weights)):
        with pytest.raises(NotImplementedError, match=r"outside torch\.vmap, got one inside: .* in a loop"):
            torch.vmap(call)(value)


@pytest.mark.parametrize("kind", LOSSES)
def test_there_is_no_value_estimator(kind: Any) -> None:
    with pytest.raises(NotImplementedError, match=f"{kind.__name__} has no value estimator, got gae"):
        kind(UniformActor()).make_value_estimator("gae")


def test_a_sequence_weight_is_one_per_row_and_biased_by_its_cap() -> None:
    """Differences log 2 and log 1.5 sum to log 3: weight 3 on both tokens, 2 with the cap."""
    difference, mask = torch.tensor([[2.0, 1.5], [1.0, 0.5]]).log(), torch.ones(2, 2, dtype=torch.bool)
    for cap, want in ((10.0, 3.0), (2.0, 2.0)):
        weight = F.truncated_importance(difference, mask, cap=cap, level="sequence")
        torch.testing.assert_close(weight, torch.tensor([[want, want], [0.5, 0.5]]))
