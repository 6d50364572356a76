"""Ways to train a model on a GPU, and whether each fits its memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bepa_torchrl.sizing import tokens
from bepa_torchrl.sizing.flops import Training
from bepa_torchrl.sizing.gpus import Gpu
from bepa_torchrl.sizing.memory import (
    CONTEXT_BYTES,
    Memory,
    Recipe,
    decoder_layer_bytes,
    kv_bytes,
    training_memory,
)
from bepa_torchrl.sizing.model import ModelShape
from bepa_torchrl.sizing.tokens import Grid

#: share of the memory that fragmentation and kernels' workspaces take, an assumption
HEADROOM = 0.1
#: token budgets are multiples of this
BUDGET_STEP = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """A recipe on a GPU.

    Args:
        name: its short description.
        recipe: the recipe.
        memory: the memory of a micro-batch of one sequence.
        fits: whether the GPU has that memory, with headroom.
        max_tokens: the largest token budget of a micro-batch that fits, a multiple of :data:`BUDGET_STEP`.
        rollouts: number of longest rows whose key-value cache fits next to weights and optimiser while sampling, or
            into the engine's.
    """

    name: str
    recipe: Recipe
    memory: Memory
    fits: bool
    max_tokens: int
    rollouts: int


def recipes(
    *,
    element: int,
    train_vision: bool,
    rank: int,
    shards: int,
    engine_cache: int | None = None,
    float32_head: bool = False,
    feature_cache: int = 0,
    engine_sleeps: bool = False,
    engine_workers: int = 1,
    whole_gradients: bool = False,
    base_copies: tuple[bool, bool] = (False, False),
) -> Iterator[tuple[str, Recipe]]:
    """Recipes, from the simplest full training to adapters with checkpointing.

    Args:
        element: bytes per element of the model's dtype.
        train_vision: whether full training trains the tower; adapters leave it frozen.
        rank: rank of the adapters.
        shards: GPUs over which weights and the optimiser's state are divided.
        engine_cache: bytes of the key-value cache of an engine on the same GPU; None: no engine.
        float32_head: whether logits are computed in float32.
        feature_cache: bytes for the features of screenshots.
        engine_sleeps: whether it gives its memory up during updates.
        engine_workers: GPUs over which the engine is divided.
        whole_gradients: whether each of several GPUs keeps a whole gradient during a step.
        base_copies: whether there is a copy of the base policy: in full training, with adapters.
    """
    full = Recipe(
        Training(vision=train_vision),
        element=element,
        shards=shards,
        engine_cache=engine_cache,
        float32_head=float32_head,
        feature_cache=feature_cache,
        engine_sleeps=engine_sleeps,
        engine_workers=engine_workers,
        whole_gradients=whole_gradients,
        base_copy=base_copies[0],
    )
    lora = replace(full, training=Training(vision=False, rank=rank), base_copy=base_copies[1])
    yield "full", full
    yield "full, activation checkpointing", replace(full, checkpointing=True)
    yield "full, activation checkpointing, 8-bit Adam", replace(full, checkpointing=True, optimizer="adamw_8bit")
    yield f"LoRA r={rank}", lora
    yield f"LoRA r={rank}, activation checkpointing", replace(lora, checkpointing=True)


def choices(
    model: ModelShape, device: Gpu, grid: Grid, longest: tokens.Sequence, options: Sequence[tuple[str, Recipe]]
) -> list[Choice]:
    """Each recipe with its memory on a GPU, for micro-batches of at least the longest sequence."""
    return [_choice(model, device, grid, longest, name, recipe) for name, recipe in options]


def _choice(model: ModelShape, device: Gpu, grid: Grid, longest: tokens.Sequence, name: str, recipe: Recipe) -> Choice:
    usable = usable_bytes(device)
    memory = training_memory(model, recipe, longest.tokens, longest.images, grid.patches)
    fixed = training_memory(model, recipe, 0, 0, grid.patches).total
    budget = max(0, usable - fixed) * longest.tokens // (memory.total - fixed) // BUDGET_STEP * BUDGET_STEP
    workers = 1 if recipe.engine_cache is None else recipe.engine_workers
    cache = kv_bytes(model.text, recipe.element, workers) * longest.tokens
    return Choice(
        name,
        recipe,
        memory,
        fits=longest.tokens <= budget and memory.resident <= usable,
        max_tokens=budget,
        rollouts=_free_for_caches(model, recipe, usable - memory.resident, longest.tokens) // cache,
    )


def _free_for_caches(model: ModelShape, recipe: Recipe, left: int, tokens: int) -> int:
    """Bytes for the key-value caches of rollouts: the engine's, or what the longest prompt's prefill leaves."""
    if recipe.engine_cache is not None:
        return recipe.engine_cache
    return max(0, left - tokens * decoder_layer_bytes(model.text, recipe.element))


def usable_bytes(device: Gpu) -> int:
    """Bytes that tensors may take."""
    return int((device.memory - CONTEXT_BYTES) / (1 + HEADROOM))


def best(candidates: Sequence[Choice]) -> Choice | None:
    """The first that fits and leaves room for one row of rollouts; None: none does."""
    return next((choice for choice in candidates if choice.fits and choice.rollouts), None)
