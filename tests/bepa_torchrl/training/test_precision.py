"""Training in half precision: small updates reach the float32 master weights, which a resume restores."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from bepa_torchrl.losses import BEPALoss
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedLearner, lamp_task, lamp_vector
from bepa_torchrl.training.optimization_step import gradient_step, trainable
from bepa_torchrl.training.precision import MasterAdamW, make_adamw


def learner(dtype: torch.dtype) -> ScriptedLearner:
    policy = ScriptedLearner(lambda key: key[3] == 0)
    policy.model.to(dtype)
    return policy


def batch_of(policy: ScriptedLearner) -> TensorDictBase:
    replacement = TraceReplacement(None, injection="never", refresh=False)
    env = LampEnv(lamp_vector(3))
    return next(iter(GroupRolloutCollector(env, policy, [lamp_task(0)], groups=1, group_size=3, postproc=replacement)))


def moved(before: list[torch.Tensor], after: list[torch.Tensor], gradients: list[torch.Tensor]) -> float:
    """Share of the weights with a gradient that changed."""
    pairs = [(a != b)[g != 0] for a, b, g in zip(before, after, gradients, strict=True)]
    return float(torch.cat(pairs).float().mean())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_step_at_the_papers_learning_rate_moves_the_master_weights(dtype: torch.dtype) -> None:
    policy = learner(dtype)
    rows = batch_of(policy)
    parameters = trainable(policy, frozen=["visual"])
    optimizer = make_adamw(parameters, lr=1e-6, weight_decay=0.01)
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in trained]
    output = gradient_step(BEPALoss(policy), optimizer, rows)
    assert output["grad_norm"] > 0
    assert all(p.dtype == torch.float32 for p in trained)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    assert moved(before, trained, gradients) > 0.9
    assert all(torch.equal(p, m.to(dtype)) for p, m in zip(parameters, trained, strict=True))


def test_without_master_weights_the_same_step_is_rounded_away() -> None:
    """What the first version did; the reason for the master weights."""
    policy = learner(torch.bfloat16)
    rows = batch_of(policy)
    parameters = trainable(policy, frozen=["visual"])
    optimizer = make_adamw(parameters, master_weights=False, lr=1e-6, weight_decay=0.01)
    before = [p.detach().clone() for p in parameters]
    gradient_step(BEPALoss(policy), optimizer, rows)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    assert moved(before, parameters, gradients) < 0.1


def quadratic(weight: torch.Tensor, target: float) -> None:
    ((weight.float() - target) ** 2).sum().backward()


def test_many_small_steps_arrive_in_the_rounded_weight() -> None:
    """256 steps of 1e-4 from 1.0: each is far below bfloat16's spacing of 0.0039 there, unlike their sum 0.0256."""
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = make_adamw([weight], lr=1e-4, weight_decay=0.0)
    for _ in range(256):
        optimizer.zero_grad()
        quadratic(weight, -1.0)
        optimizer.step()
    assert weight.tolist() == pytest.approx([1 - 0.0256] * 3, abs=0.004)


def test_gradients_of_micro_batches_are_summed_in_float32() -> None:
    """1 + 1000 x 1/1024: in bfloat16 each addition is rounded away, in float32 the sum is 1.9765625."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = MasterAdamW([weight], lr=0.0)
    weight.sum().backward()
    for _ in range(1000):
        (weight * (1 / 1024)).sum().backward()
    assert weight.grad is not None
    assert weight.grad is optimizer.masters[0].grad  # no second copy of it
    assert weight.grad.item() == 1 + 1000 / 1024


def one_step(set_gradient: Callable[[torch.nn.Module], None]) -> tuple[float, float]:
    """A bfloat16 weight of 1 and its master after a step of 0.1 along the sign of the gradient; none without one."""
    module = torch.nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        module.weight.fill_(1.0)
    optimizer = MasterAdamW(module.parameters(), lr=0.1, weight_decay=0.0)
    set_gradient(module)
    optimizer.step()
    return module.weight.item(), optimizer.masters[0].item()


def test_a_gradient_set_by_hand_counts() -> None:
    def by_hand(module: torch.nn.Module) -> None:
        module.weight.grad = torch.full((1, 1), 2.0)

    weight, master = one_step(by_hand)
    assert master == pytest.approx(0.9)
    assert weight == pytest.approx(0.9, abs=0.004)
    module = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    optimizer = MasterAdamW(module.parameters(), lr=0.1)
    with pytest.raises(RuntimeError, match="grad_dtype"):
        module.weight.grad = torch.ones(1, 1, dtype=torch.bfloat16)
    optimizer.zero_grad()


def test_zero_grad_of_the_module_removes_the_gradient() -> None:
    def zeroed(module: torch.nn.Module) -> None:
        quadratic(module.weight, 0.0)
        module.zero_grad()

    assert one_step(zeroed) == (1.0, 1.0)

    def zeroed_and_again(module: torch.nn.Module) -> None:
        quadratic(module.weight, 0.0)  # towards 0
        module.zero_grad()
        quadratic(module.weight, 2.0)  # away from it

    assert one_step(zeroed_and_again)[1] == pytest.approx(1.1)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_of_the_optimizer_removes_the_gradient(set_to_none: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = MasterAdamW([weight], lr=0.1, weight_decay=0.0)
    quadratic(weight, 0.0)
    optimizer.zero_grad(set_to_none=set_to_none)
    optimizer.step()
    assert optimizer.masters[0].tolist() == [1.0, 1.0]


def test_an_optimizer_without_masters_gets_gradients_of_the_weights_dtype_again() -> None:
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    MasterAdamW([weight], lr=0.1)
    plain = make_adamw([weight], master_weights=False, lr=0.1)
    quadratic(weight, 0.0)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.bfloat16
    plain.step()


def test_resume_goes_on_from_the_master_weights() -> None:
    def trained(steps: int, state: Any = None) -> tuple[torch.nn.Parameter, MasterAdamW]:
        weight = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = MasterAdamW([weight], lr=1e-4)
        if state is not None:
            optimizer.load_state_dict(state)
        for _ in range(steps):
            optimizer.zero_grad()
            quadratic(weight, -1.0)
            optimizer.step()
        return weight, optimizer

    whole_weight, whole = trained(40)
    _, first = trained(25)
    second_weight, second = trained(15, state=first.state_dict())
    assert torch.equal(second.masters[0], whole.masters[0])
    assert torch.equal(second_weight, whole_weight)


def test_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = MasterAdamW([weight], lr=0.1)
    plain = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=0.2)
    with pytest.raises(ValueError, match=r"has no master weights.*resume with the settings"):
        optimizer.load_state_dict(plain.state_dict())
    other = MasterAdamW([torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))], lr=0.2)
    with pytest.raises(ValueError, match="master weights do not fit"):
        optimizer.load_state_dict(other.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_the_latest_optimizer_owns_the_weights() -> None:
    """As in sft_rl: the optimiser of fine-tuning is followed by that of reinforcement learning."""
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    first = MasterAdamW([weight], lr=0.1)
    second = MasterAdamW([weight], lr=0.1)
    quadratic(weight, 0.0)
    assert first.masters[0].grad is None
    second.step()
    assert weight.tolist() != [1.0, 1.0]
    with pytest.raises(RuntimeError, match="another optimiser was made"):
        first.step()
    del second
    gc.collect()
    third = MasterAdamW([weight], lr=0.1)
    quadratic(weight, 0.0)
    third.step()


def test_float32_weights_need_no_copies() -> None:
    assert type(make_adamw([torch.nn.Parameter(torch.ones(2))], lr=0.1)) is torch.optim.AdamW
