"""AdamW with 8-bit moments: close to AdamW, a quarter of its state, saved and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.loss_and_optimizer import make_optimizer
from bepa_torchrl.storage.state import load_state, save_state
from bepa_torchrl.testing import ScriptedLearner
from bepa_torchrl.training.local_shards import LocalShards
from bepa_torchrl.training.precision import MasterWeights, make_adamw
from osworld_gym import extras

DTYPES = (torch.float32, torch.bfloat16)


def problem(dtype: torch.dtype, kind: Any, **options: Any) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    """20,000 weights, and the optimiser of their squared distance to a target."""
    weight = torch.nn.Parameter(torch.randn(100, 200, generator=torch.Generator().manual_seed(0)).to(dtype))
    return weight, make_adamw([weight], kind=kind, lr=1e-2, weight_decay=0.01, **options)


def steps(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer, count: int) -> None:
    target = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    for _ in range(count):
        optimizer.zero_grad()
        ((weight.float() - target) ** 2).sum().backward()
        optimizer.step()


def exact(weight: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """The float32 weights."""
    return (optimizer.masters[0] if isinstance(optimizer, MasterWeights) else weight).detach().clone()


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(v.nbytes for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_short_optimisation_is_close_to_adamw_with_a_quarter_of_the_state(dtype: torch.dtype) -> None:
    ends, sizes = [], []
    for kind in ("adamw", "adamw_8bit"):
        weight, optimizer = problem(dtype, kind)
        assert isinstance(optimizer, MasterWeights) == (dtype == torch.bfloat16)
        start = exact(weight, optimizer)
        steps(weight, optimizer, 50)
        assert torch.equal(weight, exact(weight, optimizer).to(dtype))
        ends.append(exact(weight, optimizer) - start)
        sizes.append(state_bytes(optimizer))
    assert (ends[0] - ends[1]).norm() < 0.1 * ends[0].norm()
    assert not torch.equal(ends[0], ends[1])
    # 2 x 20,000 bytes, 2 x 79 scales of blocks of 256, and two tables of 256 values
    assert sizes == [8 * 20_000 + 4, 2 * 20_000 + 2 * 79 * 4 + 2 * 1024]


def test_small_updates_reach_the_masters_of_bfloat16_weights() -> None:
    """256 steps of 1e-4 from 1.0, each below bfloat16's spacing of 0.0039 there."""
    weight = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    optimizer = make_adamw([weight], kind="adamw_8bit", lr=1e-4, weight_decay=0.0)
    for _ in range(256):
        optimizer.zero_grad()
        ((weight.float() + 1) ** 2).sum().backward()
        optimizer.step()
    assert weight.tolist() == pytest.approx([1 - 0.0256] * 4096, abs=0.004)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_saved_and_resumed_optimiser_goes_on_as_if_uninterrupted(tmp_path: Path, dtype: torch.dtype) -> None:
    weight, whole = problem(dtype, "adamw_8bit")
    steps(weight, whole, 12)
    first_weight, first = problem(dtype, "adamw_8bit")
    steps(first_weight, first, 7)
    save_state(tmp_path, first.state_dict())
    second_weight, second = problem(dtype, "adamw_8bit")
    second_weight.data.copy_(first_weight.data)
    second.load_state_dict(load_state(tmp_path))
    assert {value.dtype for value in second.state_dict()["state"][0]["__bnb_optimizer_quant_state__"].values()} == {
        torch.uint8,
        torch.float32,
    }
    steps(second_weight, second, 5)
    assert torch.allclose(exact(second_weight, second), exact(weight, whole), rtol=0, atol=1e-6)


def test_the_setting_chooses_it_with_its_groups() -> None:
    policy = ScriptedLearner(lambda _: True)
    settings = load_config(["optimizer.kind=adamw_8bit", "train.frozen=[]", "optimizer.vision_lr=1e-5"])
    optimizer = make_optimizer(settings, policy)
    assert type(optimizer).__name__ == "AdamW8bit"
    assert [group["lr"] for group in optimizer.param_groups] == [settings.optimizer.lr, 1e-5]
    assert load_config().optimizer.kind == "adamw"


def test_without_bitsandbytes_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.EXTRAS, "adam8bit", ("no_such_module_here",))
    with pytest.raises(ImportError, match=r"optimizer\.kind=adamw_8bit requires .*'osworld-gym\[adam8bit\]'"):
        problem(torch.float32, "adamw_8bit")


@pytest.fixture
def sharded() -> Iterator[torch.nn.Parameter]:
    """A weight as FSDP2 leaves it, on a mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield torch.nn.Parameter(distribute_tensor(torch.ones(64, 128), init_device_mesh("cpu", (1,)), [Shard(0)]))
    finally:
        dist.destroy_process_group()


def test_a_sharded_weight_is_updated_as_a_plain_one_of_the_same_rows(sharded: torch.nn.Parameter) -> None:
    """8192 values, so that the moments have 8 bits; the learning rate of ``param_groups`` holds."""
    assert isinstance(sharded, DTensor)
    plain = torch.nn.Parameter(sharded.to_local().detach().clone())
    optimizers = [make_adamw([weight], kind="adamw_8bit", lr=1e-2, weight_decay=0.1) for weight in (sharded, plain)]
    for step in range(5):
        for weight, optimizer in zip((sharded, plain), optimizers, strict=True):
            optimizer.param_groups[0]["lr"] = 1e-2 / (step + 1)
            optimizer.zero_grad()
            ((weight - 3) ** 2).sum().backward()
            torch.nn.utils.clip_grad_norm_([weight], 100.0)
            optimizer.step()
        assert torch.equal(sharded.to_local(), plain)
    assert float(plain.detach().min()) > 1.02
    assert isinstance(optimizers[0], LocalShards)
    assert optimizers[0].rows_state(sharded)["state1"].dtype == torch.uint8


def test_half_precision_weights_that_are_sharded_are_refused(sharded: torch.nn.Parameter) -> None:
    with pytest.raises(ValueError, match=r"expects float32 weights if they are divided .* set compute_dtype"):
        make_adamw([torch.nn.Parameter(sharded.detach().bfloat16())], kind="adamw_8bit")


def test_adamw_takes_sharded_weights(sharded: torch.nn.Parameter) -> None:
    optimizer = make_adamw([sharded], lr=0.5, weight_decay=0.0)
    sharded.sum().backward()
    optimizer.step()
    assert sharded.full_tensor().flatten().tolist() == pytest.approx([0.5] * 8192)  # Adam's first step is the rate
