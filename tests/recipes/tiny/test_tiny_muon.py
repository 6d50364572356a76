"""Muon: the update is orthogonalised and scaled, by hand for one step; refused parameters."""

from __future__ import annotations

import math

import pytest
import torch

from recipes.tiny.muon import RMS, Muon, orthogonalised


@pytest.mark.parametrize("shape", [(8, 8), (4, 12), (12, 4)])
def test_singular_values_come_near_one_and_the_vectors_stay(shape: tuple[int, int]) -> None:
    left, _ = torch.linalg.qr(torch.randn(shape[0], min(shape), generator=torch.Generator().manual_seed(0)))
    right, _ = torch.linalg.qr(torch.randn(shape[1], min(shape), generator=torch.Generator().manual_seed(1)))
    values = torch.linspace(0.2, 3.0, min(shape))
    found = left.T @ orthogonalised(left @ torch.diag(values) @ right.T) @ right
    assert (found - torch.diag(found.diagonal())).abs().max() < 1e-4
    assert ((found.diagonal() > 0.6) & (found.diagonal() < 1.3)).all()


def test_one_step_moves_against_the_gradient_by_the_scaled_orthogonal_matrix() -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    weight.grad = torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    Muon([weight], lr=0.1).step()
    # the first average is 0.05 g, Nesterov's gradient 0.05 g + 0.95 * 0.05 g: a multiple of g, whose scale is lost
    expected = -0.1 * RMS * math.sqrt(3) * orthogonalised(weight.grad)
    torch.testing.assert_close(weight.detach(), expected)
    assert weight[0, 0] < 0
    assert weight[1, 1] < 0
    assert weight[0, 1] == 0


def test_it_minimises_a_least_squares_problem() -> None:
    generator = torch.Generator().manual_seed(2)
    target, x = torch.randn(6, 5, generator=generator), torch.randn(40, 5, generator=generator)
    weight = torch.zeros(6, 5, requires_grad=True)
    optimizer = Muon([weight], lr=0.3)
    losses = []
    for step in range(300):
        optimizer.param_groups[0]["lr"] = 0.3 * (1 - step / 300)
        optimizer.zero_grad()
        loss = (x @ (weight - target).T).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]


def test_a_vector_is_refused() -> None:
    with pytest.raises(ValueError, match="requires matrices"):
        Muon([torch.zeros(3)], lr=0.1)
