"""The additional terms per token, by hand and against TorchRL."""

import math

import pytest
import torch
from torchrl.objectives.llm import k3_kl_token_estimate

from bepa_torchrl import functional as F


def test_k3_by_hand_and_as_torchrl_has_it() -> None:
    log_prob = torch.tensor([-1.0, -1.0, -1.0])
    base = log_prob + torch.tensor([0.0, math.log(2), -math.log(2)])
    found = F.k3_divergence(log_prob, base)
    assert found.tolist() == pytest.approx([0.0, 1 - math.log(2), math.log(2) - 0.5], abs=1e-6)
    torch.testing.assert_close(found, k3_kl_token_estimate(base, log_prob))


def test_k3_is_bounded_and_has_no_gradient_beyond_the_bound() -> None:
    log_prob = torch.tensor([-300.0], requires_grad=True)
    found = F.k3_divergence(log_prob, torch.zeros(1))
    assert math.isfinite(found.item())
    assert torch.autograd.grad(found.sum(), log_prob)[0].item() == 0.0


def test_k3_is_unbiased() -> None:
    """Over all three tokens, weighted by their probability, the mean is the exact divergence."""
    policy, base = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    mean = (policy * F.k3_divergence(policy.log(), base.log())).sum()
    assert mean.item() == pytest.approx((policy * (policy / base).log()).sum().item(), rel=1e-5)


def test_gated_distillation_by_hand() -> None:
    """sigmoid(ln 3) = 3/4; without a difference 1/2; a token that the plan makes less likely 1/4."""
    beta = 5.0
    difference = torch.tensor([math.log(3), 0.0, -math.log(3)]) / beta
    log_prob = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    term, gate = F.gated_distillation(log_prob, (log_prob + difference).detach().requires_grad_(), beta=beta)
    assert gate.tolist() == pytest.approx([0.75, 0.5, 0.25], abs=1e-6)
    assert term.tolist() == pytest.approx((gate * difference).tolist(), abs=1e-6)
    (gradient,) = torch.autograd.grad(term.sum(), log_prob)
    assert gradient.tolist() == pytest.approx([-0.75, -0.5, -0.25], abs=1e-6)
