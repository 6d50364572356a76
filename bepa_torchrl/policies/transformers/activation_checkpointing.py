"""Activation checkpointing: the backward pass recomputes each layer from its input, which alone is kept.

transformers' own ``gradient_checkpointing_enable`` acts in train mode only, in which dropout is active, too. The policy
stays in eval mode: the log-probs of training must be those of sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def checkpoint_activations(model: torch.nn.Module) -> int:
    """Recomputes every decoder layer and vision block in the backward pass; idempotent. Returns their number.

    It has no effect where gradients are disabled or a key-value cache is filled (sampling), and on parameter names.

    Raises:
        ValueError: the model has no layer that transformers marks as one to checkpoint.
    """
    layers: list[Any] = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        name = type(model).__name__
        raise ValueError(f"{name} has no layers to checkpoint; set policy.activation_checkpointing=false")
    for layer in layers:
        if not isinstance(layer.forward, _Recomputed):
            layer.forward = _Recomputed(layer.forward)
    return len(layers)


def checkpoints_activations(module: torch.nn.Module) -> bool:
    """Whether :func:`checkpoint_activations` was called for the module or a part of it."""
    return any(isinstance(part.forward, _Recomputed) for part in module.modules())


class _Recomputed:
    """A layer's forward pass whose intermediate activations are not kept for the backward pass."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self.forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # the recomputation would append to a cache a second time
        if not torch.is_grad_enabled() or kwargs.get("past_key_values") is not None:
            return self.forward(*args, **kwargs)
        return checkpoint(self.forward, *args, use_reentrant=False, **kwargs)
