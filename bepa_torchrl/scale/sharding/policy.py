"""Shards a policy's weights over the ranks of a mesh with FSDP2, layer by layer."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from bepa_torchrl.policies.transformers.policy import TransformersPolicy

ShardablePolicy = TransformersPolicy  #: what :func:`shard_policy` divides
_FORWARD = "bepa_score"


def shard_policy(policy: TransformersPolicy, mesh: DeviceMesh, *, compute_dtype: torch.dtype | None = None) -> None:
    """Divides the weights of a policy over the ranks, in place. Make the optimiser afterwards.

    Decoder layers and the blocks of a trained vision tower are gathered one at a time; embeddings, output embedding
    (tied or not) and the merger together. A frozen tower is not divided: each rank has all of it, since its cached
    features make the ranks' passes through it differ. Adapters are divided with the frozen weights of their layer.
    Gradients are summed over ranks, not averaged: the losses of
    micro-batches add up.

    A sharded policy scores (``get_dist``, the losses); it cannot sample, which would gather all weights per token.

    Args:
        policy: all ranks have the same weights, on this rank's device.
        mesh: one dimension.
        compute_dtype: dtype of the forward and backward passes, e.g. bfloat16; weights, gradients' sums and the
            optimiser's state keep the policy's dtype. None: the policy's.

    Raises:
        ValueError: the policy is sharded already, or its weights are of half precision.
    """
    model: Any = policy.model
    if isinstance(model, FSDPModule):
        raise ValueError("the policy is sharded already; load it again to shard it over another mesh")
    if model.dtype in (torch.bfloat16, torch.float16):
        raise ValueError(
            f"the weights are {model.dtype}, in which small updates are lost; load the policy with dtype=float32 and "
            f"set compute_dtype={model.dtype}"
        )
    visual = model.model.visual
    train_vision = any(parameter.requires_grad for parameter in visual.parameters())
    precision = MixedPrecisionPolicy(
        param_dtype=compute_dtype,
        reduce_dtype=model.dtype if compute_dtype else None,
        cast_forward_inputs=False,  # a block's rotary angles stay float32, as in a model of this dtype
    )
    ignored = set() if train_vision else set(visual.parameters())
    if ignored and compute_dtype is not None:
        for parameter in visual.parameters():  # not its buffers: rotary frequencies stay float32, as in a loaded model
            parameter.data = parameter.data.to(compute_dtype)
        policy.encoder.forget()
    for block in [*(visual.blocks if train_vision else ()), *model.model.language_model.layers]:
        fully_shard(block, mesh=mesh, mp_policy=precision)
    # the root is gathered again for the backward pass: kept whole, it would miss an optimiser step after no_grad
    fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=True, ignored_params=ignored)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    scorer = policy.scorer
    setattr(model, _FORWARD, scorer._forward)
    register_fsdp_forward_method(model, _FORWARD)
    scorer._forward = _without_warning(getattr(model, _FORWARD))  # type: ignore[method-assign]
    # one forward pass per call on every rank; the caller's packs bound its tokens
    scorer.max_batch_tokens = scorer.max_rows = sys.maxsize


def _without_warning(forward: Callable[..., Any]) -> Callable[..., Any]:
    """FSDP2 warns of outputs that are views, in case they are changed in place; the scorer's are not."""

    def quiet(*args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            return forward(*args)

    return quiet
