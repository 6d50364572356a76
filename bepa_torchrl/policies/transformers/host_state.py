"""A model's state in the memory of the host, for files: writers of safetensors get no tensor of an accelerator.

safetensors would copy such tensors itself, but tied weights would become separate ones there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def state_on_cpu(model: torch.nn.Module) -> dict[str, Tensor]:
    """A model's state by name, detached; tied weights are one tensor. Of a model on the CPU it is its own memory."""
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    once = {id(weight): weight for weight in state.values()}
    copies = {number: weight.detach().cpu() for number, weight in once.items()}
    return {name: copies[id(weight)] for name, weight in state.items()}


def without_ties(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, under the first of its names, as ``safetensors.torch.save_model`` does; the others' names.

    Args:
        state: by name; tied weights are one tensor.

    Returns:
        The tensors; and of each name that is left out, the one that has its tensor.
    """
    first: dict[int, str] = {}
    for name in sorted(state):
        first.setdefault(id(state[name]), name)
    kept = {name: first[id(tensor)] for name, tensor in state.items()}
    tensors = {name: state[name] for name in state if kept[name] == name}
    return tensors, {name: other for name, other in kept.items() if name != other}
