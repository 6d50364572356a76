"""Packs prompts into one batch for the model: tokens, positions, each distinct image once.

Rows are right padded: with causal attention no token attends to the padding after it, so no mask is needed. Legend: B
rows, T longest row, H hidden size, K image tokens of the batch, U distinct images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.image_patches import Grid, ImagePatcher
from bepa_torchrl.policies.transformers.mrope import PositionRule
from bepa_torchrl.policies.transformers.vision_features import FeatureSource


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One right-padded batch on the model's device.

    Args:
        tokens: int64 ``[B, T]``, 0 at padding.
        positions: int64 ``[3, B, T]``, rotary positions (time, row, column), 0 at padding.
        lengths: tokens of each row.
        next_positions: position of the next token of each row.
        images: the U distinct images.
        grids: patch grid of each distinct image.
        image_order: for each image occurrence, in row order, the index of its distinct image.
        image_positions: int64 ``[K]``, flat positions (row * T + column) of the image tokens.
    """

    tokens: Tensor
    positions: Tensor
    lengths: tuple[int, ...]
    next_positions: tuple[int, ...]
    images: tuple[bytes, ...]
    grids: tuple[Grid, ...]
    image_order: tuple[int, ...]
    image_positions: Tensor


def pack(
    prompts: Sequence[Prompt],
    *,
    patcher: ImagePatcher,
    image_token_id: int,
    position_rule: PositionRule,
    device: torch.device,
) -> PackedBatch:
    """Packs one row per prompt; a prompt may end with a response's tokens."""
    rows = [p.tokens.numpy() for p in prompts]
    lengths = tuple(len(row) for row in rows)
    tokens = np.zeros((len(rows), max(lengths)), dtype=np.int64)
    positions = np.zeros((3, *tokens.shape), dtype=np.int64)
    places, order, next_positions = [], [], []
    index: dict[bytes, int] = {}
    grids: list[Grid] = []
    merge = patcher.merge_size
    for i, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        for image in prompt.images:
            if image not in index:
                index[image] = len(index)
                grids.append(patcher.grid(image))
            order.append(index[image])
        merged = [(grids[index[image]][1] // merge, grids[index[image]][2] // merge) for image in prompt.images]
        is_image = row == image_token_id
        tokens[i, : len(row)] = row
        positions[:, i, : len(row)], next_position = position_rule(is_image, merged)
        next_positions.append(next_position)
        places.append(np.flatnonzero(is_image) + i * tokens.shape[1])
    return PackedBatch(
        tokens=torch.from_numpy(tokens).to(device),
        positions=torch.from_numpy(positions).to(device),
        lengths=lengths,
        next_positions=tuple(next_positions),
        images=tuple(index),
        grids=tuple(grids),
        image_order=tuple(order),
        image_positions=torch.from_numpy(np.concatenate(places)).to(device),
    )


def embed(model: Any, batch: PackedBatch, encoder: FeatureSource) -> tuple[Tensor, dict[str, Any]]:
    """Input embeddings ``[B, T, H]``, image features at the image tokens, and the decoder's arguments for the others.

    Qwen3-VL has features for the outputs of its first layers, too (``deepstack_visual_embeds``).
    """
    embeddings: Tensor = model.get_input_embeddings()(batch.tokens)
    if not batch.images:
        return embeddings, {}
    features = encoder.features(batch.images)
    scattered = torch.cat([features[i] for i in batch.image_order]).to(embeddings.dtype)
    first, *others = scattered.split(embeddings.shape[-1], dim=-1)
    embedded = embeddings.flatten(0, 1).index_copy(0, batch.image_positions, first).view_as(embeddings)
    if not others:
        return embedded, {}
    mask = torch.zeros_like(batch.tokens, dtype=torch.bool)
    mask.view(-1)[batch.image_positions] = True
    return embedded, {"visual_pos_masks": mask, "deepstack_visual_embeds": others}


def decoder(model: Any) -> Any:
    """The text decoder of a vision-language model."""
    return model.model.language_model


def decoder_mask(model: Any, mask: Tensor | None) -> Any:
    """An attention mask as the decoder's argument; None: causal.

    Qwen2.5-VL's decoder takes a finished mask per kind of layer, Qwen3-VL's one mask for all layers.
    """
    return mask if model.config.model_type == "qwen3_vl" else {"full_attention": mask}


def hidden_states(model: Any, batch: PackedBatch, encoder: FeatureSource, **kwargs: Any) -> Tensor:
    """Last hidden states ``[B, T, H]`` (after the final norm); ``kwargs`` go to the decoder (its KV cache)."""
    embeddings, deepstack = embed(model, batch, encoder)
    output = decoder(model)(
        inputs_embeds=embeddings,
        position_ids=batch.positions,
        attention_mask=decoder_mask(model, None),  # causal; right padding needs no mask
        **deepstack,
        **kwargs,
    )
    hidden: Tensor = output.last_hidden_state
    return hidden
