"""Attention of the vision tower: one kernel call for all windows of a length, instead of one call per window.

transformers calls its kernel once per window and layer unless FlashAttention is used: 5,044 times for a screenshot of
1920x1080 in the tower of Qwen2.5-VL-7B (180 windows in 28 of 32 layers), and once per image in the other layers. Here
windows of equal length are the batch of one call: 116 calls, however many screenshots of that size there are.

Legend: N patches of all images; A heads; d size of a head.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionAttention, apply_rotary_pos_emb_vision
from transformers.models.qwen2_vl.modeling_qwen2_vl import VisionAttention as Qwen2VLVisionAttention
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionAttention

#: transformers' classes, which differ in nothing that is computed here
_KINDS = (Qwen2VLVisionAttention, Qwen2_5_VLVisionAttention, Qwen3VLVisionAttention)


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Windows grouped by their length.

    Args:
        groups: (number of windows, their length in patches) of each group, in order.
        order: int64 ``[N]``, the patches with each group's in a row; None: they are so already.
        back: int64 ``[N]``, the inverse of ``order``.
    """

    groups: tuple[tuple[int, int], ...]
    order: Tensor | None = None
    back: Tensor | None = None


def window_plan(lengths: Sequence[int], device: torch.device) -> WindowPlan:
    """Groups windows, which lie in a row, by their length; empty ones are left out."""
    starts: dict[int, list[int]] = {}
    start = 0
    for length in lengths:
        if length:
            starts.setdefault(length, []).append(start)
        start += length
    groups = tuple((len(found), length) for length, found in starts.items())
    order = torch.cat(
        [(torch.tensor(found)[:, None] + torch.arange(length)).flatten() for length, found in starts.items()]
    )
    if bool((order == torch.arange(start)).all()):
        return WindowPlan(groups)
    return WindowPlan(groups, order.to(device), order.argsort().to(device))


class WindowPlans:
    """The plans of the boundaries seen last: all layers of a tower are given the same two tensors.

    Reading boundaries makes the CPU wait for a GPU, which happens once per forward pass and kind of layer.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[Tensor, torch.device, WindowPlan]] = deque(maxlen=2)

    def plan(self, boundaries: Tensor, device: torch.device) -> WindowPlan:
        """The plan, on a device, of windows with these boundaries, int32 ``[windows + 1]``, from 0 to N."""
        for known, where, plan in tuple(self._seen):
            if known is boundaries and where == device:
                return plan
        plan = window_plan(boundaries.diff().tolist(), device)
        self._seen.append((boundaries, device, plan))
        return plan


class BatchedWindowAttention(nn.Module):
    """A layer's attention with one kernel call per length of its windows; same parameters and results.

    Args:
        attention: transformers' module; its ``qkv`` and ``proj`` are kept, so that names in checkpoints are unchanged.
        plans: shared by all layers of the tower.
    """

    def __init__(self, attention: Any, plans: WindowPlans) -> None:
        super().__init__()
        self.qkv, self.proj = attention.qkv, attention.proj
        self.heads, self.scaling = int(attention.num_heads), float(attention.scaling)
        self.plans = plans

    def forward(
        self, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: tuple[Tensor, Tensor], **kwargs: Any
    ) -> Tensor:
        """Float ``[N, A d]`` → ``[N, A d]``; ``cu_seqlens`` are the windows' boundaries, int32 ``[windows + 1]``.

        The other arguments are those of transformers' kernels for variable lengths, which are not used here.
        """
        del kwargs
        count = len(hidden_states)
        query, key, value = self.qkv(hidden_states).view(count, 3, self.heads, -1).unbind(1)
        query, key = apply_rotary_pos_emb_vision(query, key, *position_embeddings)
        projected: Tensor = self.proj(self._attend(query, key, value, self.plans.plan(cu_seqlens, query.device)))
        return projected

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, plan: WindowPlan) -> Tensor:
        """Each ``[N, A, d]`` → ``[N, A d]``."""
        parts = [query, key, value]
        if plan.order is not None:
            parts = [part.index_select(0, plan.order) for part in parts]
        sizes = [windows * length for windows, length in plan.groups]
        groups = zip(plan.groups, *(part.split(sizes) for part in parts), strict=True)
        results = [self._windows(query, key, value, length) for (_, length), query, key, value in groups]
        merged = results[0] if len(results) == 1 else torch.cat(results)
        return merged if plan.back is None else merged.index_select(0, plan.back)

    def _windows(self, query: Tensor, key: Tensor, value: Tensor, length: int) -> Tensor:
        """Windows of one length: each ``[windows length, A, d]`` → ``[windows length, A d]``."""
        query, key, value = (part.unflatten(0, (-1, length)).transpose(1, 2) for part in (query, key, value))
        result = nn.functional.scaled_dot_product_attention(query, key, value, scale=self.scaling)
        return result.transpose(1, 2).flatten(0, 1).flatten(1)


def batch_windows(visual: Any) -> int:
    """Replaces the attention of a tower's layers by :class:`BatchedWindowAttention`; idempotent. Returns their number.

    A tower with FlashAttention is left as it is: its kernel takes windows of all lengths in one call.
    """
    if visual.config._attn_implementation != "sdpa":
        return 0
    plans, replaced = WindowPlans(), 0
    for block in visual.blocks:
        if isinstance(block.attn, _KINDS):
            block.attn = BatchedWindowAttention(block.attn, plans).train(block.attn.training)
            replaced += 1
    return replaced
