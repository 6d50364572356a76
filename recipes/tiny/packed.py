"""One forward pass for many turns about the same screenshots, each of which is encoded once.

Every compact prompt starts with the image, so all turns of a screenshot share their first tokens. The shared part goes
through the model once per screenshot; the turns then run as rows on copies of its keys and values. No row sees
another: the logits are those of one row at a time (a test compares them with the plain forward).

Shapes: B screenshots, R turns, P shared tokens, T tokens of the longest turn, M response tokens of all turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb


@dataclass(frozen=True)
class Rows:
    """Turns of similar length.

    Args:
        turns: int64 ``[R, T]``, what follows the shared tokens: the rest of each prompt and its response, padded right.
        screen: int64 ``[R]``, which screenshot a turn is about.
        response: bool ``[R, T]``, True at the tokens of the response that are learnt, the end token included.
        thought: bool ``[R, T]``, True at those tokens of the response that are the thought and not drawn; nowhere in
            prose whose drawn words are not told apart.
        drawn: int64 ``[R, T]``, the number of a drawn word's position, 0 at all other tokens.
        points: int64 ``[N, 2]``, (row, position) of the tokens that predict a coordinate.
        targets: bool ``[N, image tokens]``, the image tokens that each of them should attend to.
    """

    turns: Tensor
    screen: Tensor
    response: Tensor
    thought: Tensor
    drawn: Tensor
    points: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Packed:
    """A batch of turns over shared screenshots.

    Args:
        pixel_values: float32 ``[B * patches, 3 * 2 * patch * patch]``, as from the image processor.
        grid: int64 ``[B, 3]``, patches in time, height and width; the same for all B.
        shared: int64 ``[P]``, the tokens up to and with ``<|vision_end|>``, image tokens expanded.
        rows: the turns, in one or more lengths, so that little of them is padding.
    """

    pixel_values: Tensor
    grid: Tensor
    shared: Tensor
    rows: tuple[Rows, ...]

    def response_tokens(self) -> Tensor:
        """int64 ``[M]``, the tokens that :func:`packed_logits` predicts, in its order."""
        return torch.cat([rows.turns[rows.response] for rows in self.rows])

    def thought_tokens(self) -> Tensor:
        """Bool ``[M]``, which of them are the thought."""
        return torch.cat([rows.thought[rows.response] for rows in self.rows])

    def drawn_tokens(self) -> Tensor:
        """int64 ``[M]``, the position's number of those that are drawn words, else 0."""
        return torch.cat([rows.drawn[rows.response] for rows in self.rows])

    def coordinate_tokens(self) -> Tensor:
        """Bool ``[M]``, which of them are a coordinate of a point."""
        masks = []
        for rows in self.rows:
            is_coordinate = torch.zeros_like(rows.response)
            row, at = rows.points.unbind(1)
            is_coordinate[row, at + 1] = True
            masks.append(is_coordinate[rows.response])
        return torch.cat(masks)


def image_embeddings(model: Qwen2_5_VLForConditionalGeneration, pixel_values: Tensor, grid: Tensor) -> Tensor:
    """The vision tower's output ``[B, image tokens, hidden]`` for B screenshots of one size."""
    merged = model.model.get_image_features(pixel_values, grid).pooler_output
    return torch.stack(tuple(merged))


def packed_logits(
    model: Qwen2_5_VLForConditionalGeneration, batch: Packed, *, point_layer: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of all response tokens, attention of the pointing tokens on their targets, and image token states.

    Args:
        model: a tiny or a large Qwen2.5-VL.
        batch: the turns.
        point_layer: the decoder layer (1 or later) whose attention is trained to point; None: none.

    Returns:
        ``[M, vocabulary]`` in the order of ``batch.response_tokens()``; ``[N, heads]``, the log of the attention mass
        on the targets; ``[B, image tokens, hidden]``, the image tokens' states at that layer's input. The last two
        are empty without ``point_layer``.
    """
    decoder = model.model.language_model
    with _outputs(decoder.layers[point_layer - 1] if point_layer else None) as read:
        shared, after = _encode_shared(model, batch)
    logits, looks = [], []
    for rows in batch.rows:
        count, length = rows.turns.shape
        positions = (after + torch.arange(length)).expand(3, count, length)
        cache = _copies(shared, rows.screen, model)
        with _outputs(decoder.layers[point_layer].self_attn.q_proj if point_layer else None) as queries:
            hidden = decoder(
                inputs_embeds=decoder.embed_tokens(rows.turns),
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
        # each token is predicted by the one before; a turn never starts with a response
        logits.append(model.lm_head(hidden[:, :-1][rows.response[:, 1:]]))
        if point_layer:
            looks.append(_looking(model, batch.shared, rows, queries[0], _held(cache, point_layer)[0], positions))
    if not point_layer:
        empty = logits[0].new_zeros(0)
        return torch.cat(logits), empty, empty
    is_image = batch.shared == model.config.image_token_id
    return torch.cat(logits), torch.cat(looks), read[0][:, is_image]


def _encode_shared(model: Qwen2_5_VLForConditionalGeneration, batch: Packed) -> tuple[DynamicCache, int]:
    """Keys and values of the shared tokens, and the position that follows them."""
    decoder = model.model.language_model
    count = batch.grid.shape[0]
    ids = batch.shared.expand(count, -1)
    is_image = batch.shared == model.config.image_token_id
    images = image_embeddings(model, batch.pixel_values, batch.grid)
    embeds = decoder.embed_tokens(ids)
    embeds = embeds.masked_scatter(is_image[None, :, None], images.to(embeds.dtype))
    positions, _ = model.model.get_rope_index(
        ids[:1], mm_token_type_ids=is_image.int()[None], image_grid_thw=batch.grid[:1]
    )
    cache = _new_cache(model)
    decoder(inputs_embeds=embeds, position_ids=positions.expand(3, count, -1), past_key_values=cache, use_cache=True)
    return cache, int(positions.max()) + 1


def _copies(shared: DynamicCache, screen: Tensor, model: Qwen2_5_VLForConditionalGeneration) -> DynamicCache:
    """One copy of a screenshot's keys and values per turn; gradients flow back."""
    cache = _new_cache(model)
    for i in range(len(shared.layers)):
        keys, values = _held(shared, i)
        cache.update(keys[screen], values[screen], i)
    return cache


def _new_cache(model: Qwen2_5_VLForConditionalGeneration) -> DynamicCache:
    text_config: Any = model.config.text_config
    return DynamicCache(config=text_config)


def _held(cache: DynamicCache, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer."""
    held: Any = cache.layers[layer]
    return held.keys, held.values


@contextmanager
def _outputs(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collects a module's outputs during forward passes; an empty list without a module."""
    captured: list[Tensor] = []
    if module is None:
        yield captured
        return
    handle = module.register_forward_hook(lambda _module, _args, output: captured.append(output))
    try:
        yield captured
    finally:
        handle.remove()


def _looking(
    model: Qwen2_5_VLForConditionalGeneration,
    shared: Tensor,
    rows: Rows,
    queries: Tensor,
    keys: Tensor,
    positions: Tensor,
) -> Tensor:
    """Log attention mass ``[N, heads]`` of the pointing tokens on their targets.

    ``queries`` is ``[R, T, hidden]`` before the rotation, ``keys`` ``[R, heads, P + T, head dim]`` after it.
    """
    row, at = rows.points.unbind(1)
    heads, total, width = keys.shape[1:]
    query = queries[row, at].view(-1, heads, 1, width)
    cos, sin = model.model.language_model.rotary_emb(queries, positions[:, row, at][..., None])
    query, _ = apply_rotary_pos_emb(query, query, cos, sin)
    scores = (query @ keys[row].transpose(2, 3)).squeeze(2) * width**-0.5
    seen = torch.arange(total)[None] <= (shared.shape[0] + at)[:, None]
    weights: torch.Tensor = scores.masked_fill(~seen[:, None], float("-inf")).log_softmax(-1)
    is_image = shared == model.config.image_token_id
    weights = weights[..., : shared.shape[0]][..., is_image]
    return weights.masked_fill(~rows.targets[:, None], float("-inf")).logsumexp(-1)
