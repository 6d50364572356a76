"""The gradient norms of the RL+SFT loss's parts, by hand for a loss that is linear in its parameter."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from benchmarks import rl_sft_gradients
from benchmarks.rl_sft_gradients import PARTS, PartNorms
from bepa_torchrl.data.packing import Pack


def test_each_part_is_summed_over_the_packs_and_unscaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients of two packs are (1, 0) and (2, 4); (0, 6) and (8, 0) times the weight 0.1."""
    weights = torch.zeros(2, requires_grad=True)
    rows = [
        TensorDict({"rl": torch.tensor([1.0, 0.0]), "sft": torch.tensor([0.0, 6.0])}),
        TensorDict({"rl": torch.tensor([2.0, 4.0]), "sft": torch.tensor([8.0, 0.0])}),
    ]

    def loss(batch: TensorDict) -> TensorDict:
        parts = {"loss_objective": (batch["rl"] * weights).sum(), "loss_sft": 0.1 * (batch["sft"] * weights).sum()}
        return TensorDict(parts)

    monkeypatch.setattr(rl_sft_gradients, "pack_rows", lambda *_: [Pack((0,), (1,)), Pack((1,), (1,))])
    monkeypatch.setattr(rl_sft_gradients, "local_passes", lambda *_: ([], {}))
    norms = PartNorms([weights], weight=0.1)
    norms(loss, rows, 100)  # type: ignore[arg-type]
    assert norms.norms == {PARTS[0]: [pytest.approx(5.0)], PARTS[1]: [pytest.approx(10.0)]}
    assert weights.grad is None  # nothing is left for the step itself
