"""Log-probabilities of given tokens from hidden states, in chunks, without the full ``[B, T, V]`` logits.

In half precision logits are rounded to it: between 16 and 32 a bfloat16 has steps of 0.125. A float32 copy of the
output embedding avoids that: products of half-precision numbers are exact in float32, and so are, nearly, their sums.

Legend: N tokens (response positions of a whole batch, flat), H hidden size, V vocabulary, C tokens of one chunk.
At most two ``[C, V]`` float32 tensors exist at a time, in the forward and in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CPU_CHUNK_ELEMENTS = 1 << 24  #: 64 MB of float32 logits: the fastest of 16, 64 and 256 MB on a CPU
ACCELERATOR_CHUNK_ELEMENTS = 1 << 27  #: 512 MB: enough tokens per chunk to keep a GPU's matrix units busy


def chunk_size(vocab_size: int, elements: int) -> int:
    """Tokens per chunk such that a chunk's logits have about ``elements`` elements; at least 16."""
    return max(16, elements // vocab_size)


class _ChunkedLogProb(torch.autograd.Function):
    """(hidden ``[N, H]``, weight ``[V, H]``, tokens ``[N]``, C) → log-probs ``[N]``, entropies ``[N]``.

    The product with the weight, and its gradients, are computed in ``dtype``.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, tokens: Tensor, chunk: int, temperature: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        head = weight.to(dtype)
        log_probs = torch.empty(len(tokens), dtype=torch.float32, device=hidden.device)
        entropy = torch.empty_like(log_probs)
        normalizer = torch.empty_like(log_probs)
        for i in range(0, len(tokens), chunk):
            part = slice(i, i + chunk)
            logits = (hidden[part].to(dtype) @ head.T).float().div_(temperature)
            norm = torch.logsumexp(logits, -1)
            normalizer[part] = norm
            log_probs[part] = logits.gather(-1, tokens[part, None]).squeeze(-1) - norm
            probs = (logits - norm[:, None]).exp_()
            entropy[part] = norm - probs.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, tokens, normalizer, entropy)
        ctx.chunk, ctx.temperature, ctx.dtype = chunk, temperature, dtype
        ctx.set_materialize_grads(False)  # of entropies that no loss uses
        return log_probs, entropy

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, tokens, normalizer, entropy = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        head = weight.to(ctx.dtype)
        grad_hidden = torch.empty_like(hidden, dtype=ctx.dtype) if wants_hidden else None
        grad_weight = torch.zeros_like(head) if wants_weight else None
        if grad is None:
            grad = torch.zeros_like(normalizer)
        for i in range(0, len(tokens), ctx.chunk):
            part = slice(i, i + ctx.chunk)
            states = hidden[part].to(ctx.dtype)
            # d log p(token) / d logits = (onehot(token) - softmax(logits / T)) / T
            delta = (states @ head.T).float().div_(ctx.temperature).sub_(normalizer[part, None])
            if grad_entropy is None:
                delta.exp_().neg_()
                delta.scatter_add_(-1, tokens[part, None], torch.ones_like(tokens[part, None], dtype=delta.dtype))
                delta.mul_(grad[part, None] / ctx.temperature)
            else:
                delta = _with_entropy(delta, entropy[part, None], grad[part, None], grad_entropy[part, None])
                delta.scatter_add_(-1, tokens[part, None], grad[part, None]).div_(ctx.temperature)
            delta = delta.to(ctx.dtype)
            if grad_hidden is not None:
                torch.mm(delta, head, out=grad_hidden[part])
            if grad_weight is not None:
                grad_weight.addmm_(delta.T, states)
        # autograd rounds the weight's gradient to its dtype, unless the gradient is accumulated in float32
        return None if grad_hidden is None else grad_hidden.to(hidden.dtype), grad_weight, None, None, None, None


def _with_entropy(log_probs: Tensor, entropy: Tensor, grad: Tensor, grad_entropy: Tensor) -> Tensor:
    """``-p (grad + grad_entropy (log p + H))`` of ``[C, V]``: d H / d logits = -p (log p + H) / T."""
    probs = log_probs.exp()
    return log_probs.add_(entropy).mul_(grad_entropy).add_(grad).mul_(probs).neg_()


def chunked_log_probs(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Log softmax(hidden @ weight.T) at ``tokens``.

    Args:
        hidden: float ``[N, H]``: the hidden state that predicts each token, that is, of the position before it.
        weight: float ``[V, H]``, the output embedding (tied or not), same dtype as ``hidden``.
        tokens: int64 ``[N]``.
        temperature: > 0; logits are divided by it.
        chunk: tokens per chunk; None: 64 MB of logits on a CPU, 512 MB on an accelerator.
        dtype: of the product with the weight and of its gradient's sum over chunks, such as float32 for half-precision
            weights, which are then copied in each pass (2.2 GB at 152,064 tokens of 3,584); None: the weight's.

    Returns:
        log-probs and entropies float32 ``[N]`` in nats, differentiable in hidden and weight. Both are computed in
        float32 from logits of ``dtype``. Entropies that no loss uses cost nothing in the backward pass.
    """
    if chunk is None:
        elements = CPU_CHUNK_ELEMENTS if hidden.device.type == "cpu" else ACCELERATOR_CHUNK_ELEMENTS
        chunk = chunk_size(weight.shape[0], elements)
    log_probs, entropies = _ChunkedLogProb.apply(  # type: ignore[no-untyped-call]
        hidden, weight, tokens, chunk, temperature, weight.dtype if dtype is None else dtype
    )
    return log_probs, entropies
