"""Activation bytes by formula equal what autograd saves; totals are those of hand arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen3VLConfig

from bepa_torchrl.policies.transformers.activation_checkpointing import checkpoint_activations
from bepa_torchrl.sizing.flops import Training
from bepa_torchrl.sizing.known_models import known_model
from bepa_torchrl.sizing.memory import (
    Recipe,
    decoder_layer_bytes,
    kv_bytes,
    training_memory,
    vision_block_bytes,
)
from bepa_torchrl.sizing.model import ModelShape, model_shape

TOKENS = 64
GRID = (8, 12)


def config(family: str, layers: int, depth: int) -> Any:
    text = {
        "vocab_size": 200,
        "hidden_size": 96,
        "intermediate_size": 160,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    vision = {
        "depth": depth,
        "hidden_size": 64,
        "intermediate_size": 90,
        "num_heads": 2,
        "patch_size": 4,
        "out_hidden_size": 96,
    }
    if family == "qwen2_5_vl":
        windows = {"window_size": 16, "fullatt_block_indexes": list(range(0, depth, 2))}
        return Qwen2_5_VLConfig(text_config=text, vision_config=vision | windows)
    positions = {"num_position_embeddings": 16, "deepstack_visual_indexes": []}
    return Qwen3VLConfig(text_config=text | {"head_dim": 16}, vision_config=vision | positions)


def saved_bytes(model: nn.Module, forward: Any) -> int:
    """Bytes of the distinct storages that autograd saves, without the weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes(), tensor  # the tensor, so that its address is not used again
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(size for address, (size, _) in found.items() if address not in weights)


def small(family: str, layers: int, depth: int, dtype: torch.dtype, checkpointing: bool) -> Any:
    model: Any = AutoModelForImageTextToText.from_config(config(family, layers, depth)).to(dtype).eval()
    if checkpointing:
        checkpoint_activations(model)
    return model


def decoder_saved(family: str, dtype: torch.dtype, layers: int, *, checkpointing: bool = False) -> int:
    model = small(family, layers, 1, dtype, checkpointing)
    inputs = torch.randn(1, TOKENS, 96, dtype=dtype, requires_grad=True)
    positions = torch.arange(TOKENS)[None, None].expand(3, 1, TOKENS)
    mask = {"full_attention": None} if family == "qwen2_5_vl" else None
    return saved_bytes(
        model,
        lambda: model.model.language_model(
            inputs_embeds=inputs, position_ids=positions, attention_mask=mask, use_cache=False
        ),
    )


def vision_saved(family: str, dtype: torch.dtype, depth: int, *, checkpointing: bool = False) -> int:
    model = small(family, 1, depth, dtype, checkpointing)
    pixels = torch.randn(GRID[0] * GRID[1], 96)
    return saved_bytes(model, lambda: model.model.visual(pixels, torch.tensor([[1, *GRID]])))


def shape(family: str) -> ModelShape:
    return model_shape(config(family, 2, 2).to_dict())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_saved_bytes_of_a_layer(family: str, dtype: torch.dtype) -> None:
    decoder = (decoder_saved(family, dtype, 4) - decoder_saved(family, dtype, 2)) / 2 / TOKENS
    vision = (vision_saved(family, dtype, 4) - vision_saved(family, dtype, 2)) / 2 / (GRID[0] * GRID[1])
    assert decoder == decoder_layer_bytes(shape(family).text, dtype.itemsize)
    assert vision == vision_block_bytes(shape(family).vision, dtype.itemsize)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
def test_checkpointed_layers_keep_their_input(family: str) -> None:
    dtype, tokens, patches = torch.bfloat16, TOKENS, GRID[0] * GRID[1]
    decoder = [decoder_saved(family, dtype, layers, checkpointing=True) for layers in (2, 4)]
    vision = [vision_saved(family, dtype, depth, checkpointing=True) for depth in (2, 4)]
    assert (decoder[1] - decoder[0]) / 2 / tokens == 2 * shape(family).text.hidden
    assert (vision[1] - vision[0]) / 2 / patches == 2 * shape(family).vision.hidden


def test_a_seven_billion_model_by_hand() -> None:
    model = model_shape(known_model("ByteDance-Seed/UI-TARS-1.5-7B").config)
    # 2 h (4 + 2 w) + 8, 2 w (3584 + 512) + 4 * 28, 4 w m: 57,352 + 16,496 + 151,552
    assert decoder_layer_bytes(model.text, 2) == 225_400
    assert kv_bytes(model.text, 2) == 57_344
    recipe = Recipe(Training(), checkpointing=True)
    memory = training_memory(model, recipe, tokens=42_915, images=15, patches=10_764)
    n = 8_292_166_656
    assert (memory.weights, memory.masters, memory.gradients, memory.moments) == (2 * n, 4 * n, 4 * n, 8 * n)
    # embeddings, 28 layer inputs and the final norm; one layer recomputed
    assert memory.decoder == 42_915 * (7_168 + 28 * 7_168 + 28_672 + 225_400)
    assert memory.sampling_copy == 0
    # with 8-bit moments 2.03 bytes; over 8 GPUs an eighth of all that is sharded: float32 weights without masters
    small = training_memory(model, Recipe(Training(), "adamw_8bit", True, shards=8), 42_915, 15, 10_764)
    assert small.moments == round(2.03125 * n) // 8
    assert (small.weights, small.masters, small.sampling_copy) == (4 * n // 8, 0, 2 * n)
    assert small.workspace - memory.workspace == 2 * (2 * 233_046_016 + 2 * 152_064 * 3584)


def test_a_frozen_tower_is_whole_on_every_gpu() -> None:
    model = model_shape(known_model("ByteDance-Seed/UI-TARS-1.5-7B").config)
    memory = training_memory(model, Recipe(Training(vision=False), shards=4), 1000, 1, 10_764)
    n, tower = 8_292_166_656, 676_550_144
    assert memory.weights == 4 * (n - tower) // 4 + 2 * tower


def test_adapters_train_only_themselves() -> None:
    model = model_shape(known_model("ByteDance-Seed/UI-TARS-1.5-7B").config)
    memory = training_memory(model, Recipe(Training(vision=False, rank=64)), 1000, 1, 10_764)
    # rank * (q, o: 7168 each; k, v: 4096 each; gate, up, down: 22,528 each) per layer
    adapters = 28 * 64 * (2 * 7168 + 2 * 4096 + 3 * 22_528)
    assert adapters == model.adapter_parameters(64)
    assert (memory.masters, memory.moments) == (4 * adapters, 8 * adapters)
    assert memory.weights == 2 * (8_292_166_656 + adapters)
    assert memory.vision == 2691 * 3584 * 2  # the frozen tower's features


def test_an_engine_that_sleeps_leaves_its_context_only_while_a_batch_is_trained() -> None:
    model = shape("qwen2_5_vl")
    awake = training_memory(model, Recipe(Training(), engine_cache=40 * 10**9), 1000, 1, 10_764)
    recipe = Recipe(Training(), engine_cache=40 * 10**9, engine_sleeps=True)
    memory = training_memory(model, recipe, 1000, 1, 10_764)
    assert memory.asleep == 2 * model.parameters + 40 * 10**9
    assert awake.total - memory.total == memory.asleep
    assert awake.resident == memory.resident  # while rollouts are sampled it has both
    assert training_memory(model, Recipe(Training(), engine_sleeps=True), 1000, 1, 10_764).asleep == 0


def test_float32_needs_no_masters() -> None:
    model = shape("qwen2_5_vl")
    memory = training_memory(model, Recipe(Training(), element=4), TOKENS, 1, 96)
    assert (memory.weights, memory.masters) == (4 * model.parameters, 0)
