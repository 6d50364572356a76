"""Differentiable log-probs of given responses; rows that are prefixes of other rows share one forward pass.

Rows of one episode often extend each other: the prompt of step t + 1 begins with the prompt and response of step t.
Under causal attention a token's state depends only on the tokens before it, so such a row requires no separate forward
pass: its log-probs are those of the longer row. A row is shared only if its token ids and images are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bepa_torchrl.data.packing import find_hosts
from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.batching import hidden_states, pack
from bepa_torchrl.policies.transformers.chunked_log_probs import chunked_log_probs
from bepa_torchrl.policies.transformers.mrope import position_rule
from bepa_torchrl.policies.transformers.sampler import budget_batches
from bepa_torchrl.policies.transformers.vision_features import ImageEncoder, SharedFeatures


class Scorer:
    """Scores responses under a Qwen2.5-VL model.

    Args:
        model: the conditional-generation model.
        encoder: PNG bytes → image features.
        image_token_id: the token that represents a merged patch.
        max_batch_tokens: maximum tokens per forward pass, including padding; a single row may exceed it.
        max_rows: maximum rows per forward pass.
        head_dtype: in which logits are computed; None: the model's.
    """

    def __init__(
        self,
        model: Any,
        encoder: ImageEncoder,
        *,
        image_token_id: int,
        max_batch_tokens: int,
        max_rows: int,
        head_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.encoder = encoder
        self.image_token_id = image_token_id
        self.max_batch_tokens = max_batch_tokens
        self.max_rows = max_rows
        self.head_dtype = head_dtype

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[Tensor], *, temperature: float = 1.0
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Log-probs and entropies of each response's tokens, float32 ``[L]`` in nats, in the rows' order.

        Both are those of ``softmax(logits / temperature)``, the distribution of a sampler at that temperature.

        Both are differentiable unless gradients are disabled. With gradients on, the graphs
        of all forward passes are kept until the backward pass, so the caller's micro-batch bounds the memory
        (:func:`bepa_torchrl.data.packing.pack_rows`). Each distinct image of a call is encoded once.
        """
        features = SharedFeatures(self.encoder)
        pairs = list(zip(prompts, responses, strict=True))
        sequences = [np.concatenate((p.tokens.numpy(), r.cpu().numpy())) for p, r in pairs]
        hosts = find_hosts(sequences, [p.images for p in prompts])
        guests: dict[int, list[int]] = defaultdict(list)
        for row, host in enumerate(hosts):
            guests[host].append(row)
        names = list(guests)
        by_row: dict[int, tuple[Tensor, Tensor]] = {}
        for batch in budget_batches([len(sequences[h]) for h in names], self.max_batch_tokens, self.max_rows):
            chosen = [names[i] for i in batch]
            spans = [
                (place, row, len(prompts[row].tokens), len(sequences[row]))
                for place, host in enumerate(chosen)
                for row in guests[host]
            ]
            full = [Prompt(torch.from_numpy(sequences[h]), prompts[h].images) for h in chosen]
            log_probs, entropies = self._forward(
                full, [(place, start, end) for place, _, start, end in spans], temperature, features
            )
            for (_, row, _, _), row_log_probs, row_entropies in zip(spans, log_probs, entropies, strict=True):
                by_row[row] = (row_log_probs, row_entropies)
        return [by_row[i][0] for i in range(len(pairs))], [by_row[i][1] for i in range(len(pairs))]

    def _forward(
        self,
        rows: Sequence[Prompt],
        spans: Sequence[tuple[int, int, int]],
        temperature: float,
        features: SharedFeatures,
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """One forward pass over complete rows; log-probs and entropies per span (row, start, end)."""
        packed = pack(
            rows,
            patcher=self.encoder.patcher,
            image_token_id=self.image_token_id,
            position_rule=position_rule(self.model),
            device=self.model.device,
        )
        hidden = hidden_states(self.model, packed, features, use_cache=False)
        width = packed.tokens.shape[1]
        positions = torch.cat([torch.arange(start, end) + row * width for row, start, end in spans]).to(hidden.device)
        log_probs, entropies = chunked_log_probs(
            hidden.flatten(0, 1)[positions - 1],  # the state before a token predicts it
            self.model.get_output_embeddings().weight,
            packed.tokens.flatten()[positions],
            temperature=temperature,
            dtype=self.head_dtype,
        )
        counts = [end - start for _, start, end in spans]
        return log_probs.split(counts), entropies.split(counts)
