"""The vision tower's windows are batched by their length: equal features and gradients, far fewer kernel calls."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from bepa_torchrl.policies.transformers.activation_checkpointing import checkpoint_activations
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.transformers.window_attention import (
    BatchedWindowAttention,
    WindowPlan,
    WindowPlans,
    batch_windows,
    window_plan,
)
from bepa_torchrl.testing import small_checkpoint

#: a window of 8 x 8 patches; grids that windows fill, and do not; two images of a size, and one of another
GRIDS = [[(8, 16)], [(10, 20)], [(10, 20), (10, 20), (6, 8)]]


def qwen2_5_tower() -> Any:
    config = Qwen2_5_VLVisionConfig(
        depth=3,
        hidden_size=32,
        intermediate_size=48,
        num_heads=2,
        out_hidden_size=24,
        patch_size=2,
        window_size=16,
        fullatt_block_indexes=[1],
    )
    return Qwen2_5_VisionTransformerPretrainedModel._from_config(config, attn_implementation="sdpa")


def qwen3_tower() -> Any:
    config = Qwen3VLVisionConfig(
        depth=2,
        hidden_size=32,
        intermediate_size=48,
        num_heads=2,
        out_hidden_size=24,
        patch_size=2,
        num_position_embeddings=64,
        deepstack_visual_indexes=[0],
    )
    return Qwen3VLVisionModel._from_config(config, attn_implementation="sdpa")


def qwen2_tower() -> Any:
    config = Qwen2VLVisionConfig(depth=2, embed_dim=32, hidden_size=24, mlp_ratio=2, num_heads=2, patch_size=2)
    return Qwen2VisionTransformerPretrainedModel._from_config(config, attn_implementation="sdpa")


TOWERS = {"qwen2_vl": qwen2_tower, "qwen2_5_vl": qwen2_5_tower, "qwen3_vl": qwen3_tower}


class Calls:
    """Counts calls of the attention kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        kernel = torch.nn.functional.scaled_dot_product_attention

        def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
            self.count += 1
            return kernel(*args, **kwargs)

        monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)

    def take(self) -> int:
        count, self.count = self.count, 0
        return count


def update(tower: Any, grids: list[tuple[int, int]], dtype: torch.dtype) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Features of random patches, and the gradients of all parameters."""
    torch.manual_seed(3)
    config = tower.config
    width = 3 * config.temporal_patch_size * config.patch_size**2
    patches = torch.randn(sum(rows * columns for rows, columns in grids), width, dtype=dtype)
    output = tower(patches, torch.tensor([[1, *grid] for grid in grids])).pooler_output
    output.float().square().mean().backward()
    return output.detach(), [parameter.grad for parameter in tower.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("grids", GRIDS, ids=str)
@pytest.mark.parametrize("kind", TOWERS)
def test_features_and_gradients_equal_those_of_transformers(
    kind: str, grids: list[tuple[int, int]], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    theirs = TOWERS[kind]().to(dtype).eval()
    ours = copy.deepcopy(theirs)
    assert batch_windows(ours) == len(ours.blocks)
    names = [name for name, _ in theirs.named_parameters()]
    assert [name for name, _ in ours.named_parameters()] == names
    (expected, gradients), (found, found_gradients) = (update(tower, grids, dtype) for tower in (theirs, ours))
    atol, rtol = (1e-6, 1e-5) if dtype is torch.float32 else (1e-3, 2e-2)
    assert float(expected.abs().max()) > 0.01
    torch.testing.assert_close(found, expected, atol=atol, rtol=rtol)
    for name, ours_, theirs_ in zip(names, found_gradients, gradients, strict=True):
        assert (ours_ is None) == (theirs_ is None), name  # deepstack's mergers are not used here
        assert ours_ is None or torch.allclose(ours_, theirs_, atol=atol, rtol=rtol), name


def test_checkpointed_activations_give_equal_gradients() -> None:
    torch.manual_seed(0)
    plain = qwen2_5_tower().eval()
    batch_windows(plain)
    checkpointed = copy.deepcopy(plain)
    checkpoint_activations(checkpointed)
    (expected, gradients), (found, found_gradients) = (
        update(tower, GRIDS[2], torch.float32) for tower in (plain, checkpointed)
    )
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(found_gradients, gradients, strict=True))


def test_kernel_calls_are_one_per_length_of_window_and_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 x 20 patches: windows of 64, 32, 16 and 8; a whole-image layer; two screenshots cost no more than one."""
    theirs, calls = qwen2_5_tower().eval(), Calls(monkeypatch)
    ours = copy.deepcopy(theirs)
    batch_windows(ours)
    for images, before, after in ((1, 2 * 6 + 1, 2 * 4 + 1), (2, 2 * 12 + 2, 2 * 4 + 1)):
        for tower, count in ((theirs, before), (ours, after)):
            update(tower, [(10, 20)] * images, torch.float32)
            assert calls.take() == count


def test_boundaries_are_read_once_per_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading makes the CPU wait for a GPU."""
    tower = qwen2_5_tower().eval()
    batch_windows(tower)
    read: list[int] = []

    def counted(lengths: list[int], device: torch.device) -> WindowPlan:
        read.append(sum(lengths))
        return window_plan(lengths, device)

    monkeypatch.setattr("bepa_torchrl.policies.transformers.window_attention.window_plan", counted)
    update(tower, [(10, 20)], torch.float32)
    assert read == [200, 200]  # the windows', and the whole images'
    update(tower, [(8, 16)], torch.float32)
    assert read == [200, 200, 128, 128]  # others are not taken for them


def test_windows_are_grouped_in_order() -> None:
    plan = window_plan([3, 2, 3, 0, 2], torch.device("cpu"))
    assert plan.groups == ((2, 3), (2, 2))
    assert plan.order is not None
    assert plan.order.tolist() == [0, 1, 2, 5, 6, 7, 3, 4, 8, 9]
    assert plan.back is not None
    assert plan.order[plan.back].tolist() == list(range(10))
    assert window_plan([4, 4, 2], torch.device("cpu")).order is None


def test_plans_belong_to_their_boundaries() -> None:
    plans, cpu = WindowPlans(), torch.device("cpu")
    first, second = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 3, 4])
    assert plans.plan(first, cpu) is plans.plan(first, cpu)
    assert plans.plan(second, cpu).groups == ((2, 1), (1, 2))
    assert plans.plan(first, cpu).groups == ((2, 2),)
    order = plans.plan(second, torch.device("meta")).order
    assert order is not None
    assert order.is_meta  # where the patches are


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_a_policy_has_batched_windows(family: str) -> None:
    policy = TransformersPolicy(small_checkpoint(family=family), preset="compact", max_new_tokens=4)
    visual = policy.model.model.visual
    assert all(isinstance(block.attn, BatchedWindowAttention) for block in visual.blocks)
    assert batch_windows(visual) == 0


def test_flash_attention_takes_all_windows_by_itself() -> None:
    model: Any = small_checkpoint().model
    assert isinstance(model, Qwen2_5_VLForConditionalGeneration)
    model.model.visual.config._attn_implementation = "flash_attention_2"
    assert batch_windows(model.model.visual) == 0
