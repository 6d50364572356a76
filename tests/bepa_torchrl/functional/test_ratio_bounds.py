"""Importance ratios are those of a clamped log ratio: finite values and gradients whatever the log ratio is."""

from __future__ import annotations

import math

import pytest
import torch

from bepa_torchrl import functional as F

EXTREME = (-1e4, -200.0, -89.0, 89.0, 200.0, 1e4)


def test_the_ratio_by_hand() -> None:
    """exp(20) = 4.85165195e8, exp(-20) = 2.06115362e-9; inside the bound nothing changes."""
    found = F.ratio(torch.tensor([-100.0, -1.0, 0.0, 1.0, 100.0], dtype=torch.float64)).tolist()
    assert found == pytest.approx([2.06115362e-9, math.exp(-1), 1.0, math.e, 4.85165195e8], rel=1e-8)


def test_the_gradient_ends_at_the_bound() -> None:
    log_ratio = torch.tensor([-21.0, 2.0, 21.0], requires_grad=True)
    F.ratio(log_ratio).sum().backward()
    assert log_ratio.grad is not None
    assert log_ratio.grad.tolist() == pytest.approx([0.0, math.exp(2), 0.0])


@pytest.mark.parametrize("value", EXTREME)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_losses_and_gradients_are_finite(value: float, advantage: float, dual_clip: float | None) -> None:
    """Of a clipped token the gradient is 0; before the clamp it was 0 times infinity."""
    for name, options in (("clipped_surrogate", {"dual_clip": dual_clip}), ("surrogate", {})):
        log_ratio = torch.tensor([value], requires_grad=True)
        loss = getattr(F, name)(log_ratio, torch.tensor([advantage]), **options)
        loss.sum().backward()
        assert torch.isfinite(loss).all()
        assert log_ratio.grad is not None
        assert torch.isfinite(log_ratio.grad).all()


@pytest.mark.parametrize("value", EXTREME)
def test_statistics_and_weights_are_finite(value: float) -> None:
    log_ratio, mask = torch.tensor([[value, 0.0]]), torch.ones(1, 2, dtype=torch.bool)
    bound = min(max(value, -20.0), 20.0)
    kl = (math.exp(bound) - 1 - bound) / 2  # the second token adds 0
    assert F.approximate_kl(log_ratio, mask).item() == pytest.approx(kl, rel=1e-5)
    assert torch.isfinite(F.effective_sample_size(log_ratio, mask))
    for level, expected in (("token", [min(math.exp(bound), 2.0), 1.0]), ("sequence", [min(math.exp(bound), 2.0)] * 2)):
        found = F.truncated_importance(log_ratio, mask, level=level)
        assert found.tolist() == [pytest.approx(expected, rel=1e-5)]
    assert F.clip_binds(log_ratio, torch.tensor([[1.0]])).tolist() == [[value > 0, False]]
