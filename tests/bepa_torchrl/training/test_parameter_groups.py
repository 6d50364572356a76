"""The vision tower frozen, trained, or at its own learning rate, through optimiser, checkpoint and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.loss_and_optimizer import make_optimizer
from bepa_torchrl.storage.state import load_state, save_state
from bepa_torchrl.testing import ScriptedLearner
from bepa_torchrl.training.optimization_step import parameter_groups, trainable
from bepa_torchrl.training.precision import MasterAdamW, make_adamw


def learner(dtype: torch.dtype = torch.float32) -> ScriptedLearner:
    policy = ScriptedLearner(lambda _: True)
    policy.model.to(dtype)
    return policy


def of_the_tower(policy: ScriptedLearner) -> set[int]:
    return {id(parameter) for parameter in policy.model.model.visual.parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_tower_is_a_group_with_its_own_rate(dtype: torch.dtype) -> None:
    policy = learner(dtype)
    settings = load_config(["train.frozen=[]", "optimizer.lr=1e-3", "optimizer.vision_lr=1e-4"])
    optimizer = make_optimizer(settings, policy)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 1e-4]
    assert all(group["betas"] == settings.optimizer.betas for group in optimizer.param_groups)
    tower = sum(p.numel() for p in policy.model.model.visual.parameters())
    every = sum(p.numel() for p in policy.parameters())
    sizes = [sum(p.numel() for p in group["params"]) for group in optimizer.param_groups]
    assert sizes == [every - tower, tower]
    sft = make_optimizer(settings, policy, lr=1e-2)
    assert [group["lr"] for group in sft.param_groups] == [1e-2, 1e-4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adam_moves_each_group_by_its_rate(dtype: torch.dtype) -> None:
    """The first step of Adam is the rate times the gradient's sign; the masters of bfloat16 weights are exact."""
    policy = learner(dtype)
    optimizer = make_adamw(parameter_groups(policy, lr=1e-3, vision_lr=1e-5), weight_decay=0.0, eps=1e-12)
    moved = [(group["lr"], [p.detach().clone() for p in group["params"]]) for group in optimizer.param_groups]
    for parameter in policy.parameters():
        parameter.requires_grad_()
    torch.stack([p.float().sum() for p in policy.parameters()]).sum().backward()
    optimizer.step()
    for group, (lr, before) in zip(optimizer.param_groups, moved, strict=True):
        for parameter, old in zip(group["params"], before, strict=True):
            assert torch.allclose(old - parameter, torch.full_like(old, lr), atol=1e-6 * float(old.abs().max()) + 1e-9)


def test_without_a_rate_there_is_one_group_and_frozen_parts_have_none() -> None:
    policy = learner()
    (group,) = parameter_groups(policy, lr=1e-3, frozen=["visual"])
    assert group["lr"] == 1e-3
    assert not {id(p) for p in group["params"]} & of_the_tower(policy)
    assert not any(p.requires_grad for p in policy.model.model.visual.parameters())


def test_a_rate_for_a_frozen_tower_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.vision_lr=1e-05 requires a trained vision tower"):
        parameter_groups(learner(), lr=1e-3, vision_lr=1e-5, frozen=["visual"])


def test_what_the_policy_froze_stays_frozen() -> None:
    policy = learner()
    policy.model.model.visual.requires_grad_(False)
    assert not {id(p) for p in trainable(policy)} & of_the_tower(policy)


def pair(dtype: torch.dtype) -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    weights = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for _ in range(2)]
    groups = [{"params": weights[:1], "lr": 1e-2}, {"params": weights[1:], "lr": 1e-3}]
    return weights, make_adamw(groups, weight_decay=0.01)


def steps(weights: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        torch.stack([(weight.float() ** 2).sum() for weight in weights]).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_and_resumed_optimiser_keeps_both_rates(tmp_path: Path, dtype: torch.dtype) -> None:
    weights, whole = pair(dtype)
    steps(weights, whole, 12)
    first_weights, first = pair(dtype)
    assert isinstance(first, MasterAdamW) == (dtype == torch.bfloat16)
    steps(first_weights, first, 7)
    save_state(tmp_path, first.state_dict())
    second_weights, second = pair(dtype)
    for weight, saved in zip(second_weights, first_weights, strict=True):
        weight.data.copy_(saved)
    state: dict[str, Any] = load_state(tmp_path)
    for group in second.param_groups:
        group["lr"] = 9.0
    second.load_state_dict(state)
    assert [group["lr"] for group in second.param_groups] == [1e-2, 1e-3]
    steps(second_weights, second, 5)
    for weight, expected in zip(second_weights, weights, strict=True):
        assert torch.allclose(weight, expected, atol=1e-7)
    first_moved, second_moved = (1 - float(weight.detach()[0]) for weight in weights)
    assert first_moved > 5 * second_moved > 0


def test_a_state_with_other_groups_is_refused() -> None:
    weights, optimizer = pair(torch.bfloat16)
    other = make_adamw(weights, lr=1.0)
    with pytest.raises(ValueError, match="parameter groups"):
        optimizer.load_state_dict(other.state_dict())
