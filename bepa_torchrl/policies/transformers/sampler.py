"""Batched sampling with a KV cache; a row's sample depends on its seed key and prompt only, not on its batch.

Legend: B rows of a batch, P columns of the longest prompt, V vocabulary. Tokens are selected by
:mod:`bepa_torchrl.policies.keyed_sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.data.seeding import token_uniforms
from bepa_torchrl.policies.keyed_sampling import choose_tokens
from bepa_torchrl.policies.out_of_memory import sampling_advice
from bepa_torchrl.policies.transformers.batching import decoder, decoder_mask, hidden_states, pack
from bepa_torchrl.policies.transformers.kv_cache import DecodeCache
from bepa_torchrl.policies.transformers.mrope import position_rule
from bepa_torchrl.policies.transformers.vision_features import ImageEncoder


def budget_batches(lengths: Sequence[int], budget: int, max_rows: int) -> Iterator[list[int]]:
    """Batches of row indices of similar length: longest row x rows <= ``budget`` (a single row is always allowed)."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True):
        if batch and (len(batch) == max_rows or lengths[batch[0]] * (len(batch) + 1) > budget):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


#: hidden states ``[B, H]`` → logits ``[B, V]``
Head = Callable[[Tensor], Tensor]


def output_head(model: Any, dtype: torch.dtype | None) -> Head:
    """The model's output head; with another ``dtype`` than the model's, with a copy of the weight in it."""
    head = model.lm_head
    if dtype is None or dtype == head.weight.dtype:
        found: Head = head
        return found
    weight = head.weight.to(dtype)
    return lambda hidden: torch.nn.functional.linear(hidden.to(dtype), weight)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """One row's tokens, int64 ``[L]``, and their log-probs at the sampling temperature, float32 ``[L]``, nats."""

    tokens: Tensor
    log_probs: Tensor


class TokenSampler:
    """Samples responses of a Qwen2.5-VL or Qwen3-VL model.

    Args:
        model: the conditional-generation model, in eval mode.
        encoder: PNG bytes → image features.
        image_token_id: the token that represents a merged patch.
        end_token_ids: sampling of a row stops after one of these.
        blocked_ids: never sampled (an image token in a response would break the next forward pass).
        max_new_tokens: maximum tokens per response, including the end token.
        max_batch_tokens: maximum (prompt + response) tokens per batch; a single row may exceed it.
        max_rows: maximum rows per batch.
        head_dtype: in which logits are computed; None: the model's.
    """

    def __init__(
        self,
        model: Any,
        encoder: ImageEncoder,
        *,
        image_token_id: int,
        end_token_ids: Iterable[int],
        blocked_ids: Iterable[int],
        max_new_tokens: int,
        max_batch_tokens: int,
        max_rows: int,
        head_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.encoder = encoder
        self.image_token_id = image_token_id
        self.end_token_ids = frozenset(end_token_ids)
        self.blocked_ids = sorted(set(blocked_ids) - self.end_token_ids)
        self.max_new_tokens = max_new_tokens
        self.max_batch_tokens = max_batch_tokens
        self.max_rows = max_rows
        self.head_dtype = head_dtype

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[SampledTokens]:
        """One response per prompt, in order. ``temperature=0`` is greedy.

        Raises:
            ValueError: a negative temperature, or not one key per prompt.
            DeviceMemoryError: the device is out of memory.
        """
        if temperature < 0:
            raise ValueError(f"temperature must be >= 0, got {temperature}")
        if len(keys) != len(prompts):
            raise ValueError(f"expected one key per prompt, got {len(keys)} keys for {len(prompts)} prompts")
        lengths = [len(prompt.tokens) + self.max_new_tokens for prompt in prompts]
        rows: list[SampledTokens | None] = [None] * len(prompts)
        for batch in budget_batches(lengths, self.max_batch_tokens, self.max_rows):
            with sampling_advice([lengths[i] for i in batch]), torch.inference_mode():
                drawn = self._sample_batch([prompts[i] for i in batch], [keys[i] for i in batch], temperature)
            for i, (tokens, log_probs) in zip(batch, drawn, strict=True):
                rows[i] = SampledTokens(torch.from_numpy(tokens), torch.from_numpy(log_probs))
        return [row for row in rows if row is not None]

    def _sample_batch(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Of each token the device sends one thing: the chosen ids, which decide whether sampling goes on."""
        state = self._prefill(prompts)
        count, device = len(prompts), state.logits.device
        drawn_uniforms = np.zeros((count, self.max_new_tokens))
        if temperature > 0:
            drawn_uniforms = np.stack([token_uniforms(key, self.max_new_tokens) for key in keys])
        uniforms = torch.from_numpy(drawn_uniforms).to(device)
        tokens = np.zeros((count, self.max_new_tokens), dtype=np.int64)
        log_probs = torch.zeros((count, self.max_new_tokens), dtype=torch.float32, device=device)
        lengths = np.full(count, self.max_new_tokens)
        live = np.ones(count, dtype=bool)
        ends = np.asarray(sorted(self.end_token_ids))
        blocked = torch.tensor(self.blocked_ids, dtype=torch.int64, device=device)
        places = torch.arange(count, device=device)  # of the rows still in the batch
        for step in range(self.max_new_tokens):
            chosen, log_probs[places, step] = choose_tokens(state.logits, uniforms[places, step], temperature, blocked)
            drawn = chosen.cpu().numpy()
            tokens[state.rows, step] = drawn
            ended = state.rows[np.isin(drawn, ends) & live[state.rows]]
            live[ended] = False
            lengths[ended] = step + 1
            if not live.any() or step + 1 == self.max_new_tokens:
                break
            still = live[state.rows]
            if still.sum() <= 0.75 * len(still):
                kept = state.keep(still)
                chosen, places = chosen[kept], places[kept]
            state.advance(self.model, chosen)
        values = log_probs.cpu().numpy()
        return [(tokens[i, :n].copy(), values[i, :n].copy()) for i, n in enumerate(lengths)]

    def _prefill(self, prompts: Sequence[Prompt]) -> _Decoding:
        """Runs the prompts through the model, each distinct one once."""
        index: dict[tuple[bytes, tuple[bytes, ...]], int] = {}
        which = [index.setdefault((p.tokens.numpy().tobytes(), p.images), len(index)) for p in prompts]
        firsts = [which.index(i) for i in range(len(index))]
        device = self.model.device
        batch = pack(
            [prompts[i] for i in firsts],
            patcher=self.encoder.patcher,
            image_token_id=self.image_token_id,
            position_rule=position_rule(self.model),
            device=device,
        )
        width = batch.tokens.shape[1]
        cache = DecodeCache(width + self.max_new_tokens)
        hidden = hidden_states(self.model, batch, self.encoder, past_key_values=cache, use_cache=True)
        last = torch.tensor(batch.lengths, device=device) - 1
        head = output_head(self.model, self.head_dtype)
        logits = head(hidden[torch.arange(len(firsts), device=device), last])
        positions = torch.tensor(batch.next_positions, device=device)
        lengths = torch.tensor(batch.lengths, device=device)
        if len(firsts) < len(prompts):
            repeat = torch.tensor(which, device=device)
            cache.select(repeat)
            logits, positions, lengths = logits[repeat], positions[repeat], lengths[repeat]
        return _Decoding(cache, head, logits, positions, lengths, width)


class _Decoding:
    """The rows still in the batch: cache, next logits, next positions. ``rows``: their original indices."""

    def __init__(
        self, cache: DecodeCache, head: Head, logits: Tensor, positions: Tensor, lengths: Tensor, width: int
    ) -> None:
        self.cache = cache
        self.head = head
        self.logits = logits
        self.positions = positions
        self.rows = np.arange(len(lengths))
        columns = torch.arange(cache.capacity, device=lengths.device)
        ragged = bool((lengths != width).any())
        self.visible = ((columns < lengths[:, None]) | (columns >= width)) if ragged else None  # bool [B, capacity]

    def keep(self, mask: NDArray[np.bool_]) -> Tensor:
        """Drops the other rows; returns the indices of the kept ones in the previous batch, int64 ``[b]``."""
        kept = torch.from_numpy(np.flatnonzero(mask)).to(self.positions.device)
        self.cache.select(kept)
        self.rows = self.rows[mask]
        self.positions = self.positions[kept]
        self.visible = None if self.visible is None else self.visible[kept]
        return kept

    def advance(self, model: Any, tokens: Tensor) -> None:
        """Feeds one token per row and updates ``logits`` ``[B, V]``."""
        filled = self.cache.get_seq_length() + 1
        mask = None
        if self.visible is not None:
            mask = self.visible[:, :filled]
            if "flash" not in model.config._attn_implementation:  # flash attention takes the mask per column
                mask = mask[:, None, None, :]
        hidden = decoder(model)(
            inputs_embeds=model.get_input_embeddings()(tokens[:, None]),
            position_ids=self.positions[None, :, None].expand(3, -1, -1),
            attention_mask=decoder_mask(model, mask),
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state
        self.logits = self.head(hidden[:, 0])
        self.positions = self.positions + 1
