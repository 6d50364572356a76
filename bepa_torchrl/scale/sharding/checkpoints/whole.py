"""Loads the checkpoint of one process into a policy that is divided over ranks: each rank reads its own rows.

Its components are the weights (:class:`bepa_torchrl.training.checkpoint.PolicyWeights`) and the optimiser's state,
which numbers the parameters in the order of its groups and has the float32 masters of half-precision weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim import Optimizer
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.scale.sharding.checkpoints.moments_8bit import divide_state
from bepa_torchrl.scale.sharding.checkpoints.row_ranges import local_rows
from bepa_torchrl.scale.sharding.checkpoints.sharded import saved_parameters
from bepa_torchrl.storage.state import open_state
from bepa_torchrl.training.checkpoint import VERSION_FILE, WEIGHTS_FILE
from bepa_torchrl.training.local_shards import LocalShards

_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATE_8BIT = ("state1", "state2")  #: bitsandbytes' names, with scales besides if they have 8 bits


@torch.no_grad()
def load_whole_weights(policy: Any, path: Path) -> None:
    """Loads the weights and the policy's version, in place.

    Args:
        policy: the policy of the same architecture, sharded or whole.
        path: folder of the component.

    Raises:
        CheckpointError: the weights are damaged or of another model; nothing is changed.
    """
    try:
        file: Any = safe_open(path / WEIGHTS_FILE, framework="pt")
        version = int(json.loads((path / VERSION_FILE).read_text())["policy_version"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has no weights that can be read: {error}") from error
    saved_as: Mapping[str, str] = file.metadata() or {}  # of tied weights one is saved; the others are names of it
    own = {name: saved_as.get(name, name) for name in saved_parameters(policy)}
    slices = {name: file.get_slice(name) for name in list(file.keys())}
    shapes = {name: list(parameter.shape) for name, parameter in saved_parameters(policy).items()}
    if set(own.values()) != set(slices) or any(slices[own[name]].get_shape() != shapes[name] for name in own):
        raise CheckpointError(f"{path / WEIGHTS_FILE} is of another model: names or shapes of its weights differ")
    for name, parameter in saved_parameters(policy).items():
        _copy_rows(parameter, slices[own[name]])
    policy.version = version


@torch.no_grad()
def load_whole_optimizer(optimizer: Optimizer, path: Path) -> None:
    """Loads AdamW's state and, over the rounded weights, the float32 masters if there are any, in place.

    Args:
        optimizer: AdamW of float32 parameters, sharded or whole; its learning rates and other options stay. 8-bit
            moments are rounded once more, to the blocks of this rank's rows.
        path: folder of the component.

    Raises:
        CheckpointError: the state is damaged, of another optimiser or of other parameters; nothing is changed.
    """
    kinds = _STATE_8BIT if isinstance(optimizer, LocalShards) else _MOMENTS
    try:
        saved = open_state(path)["optimizer"]
        numbers = [int(number) for group in saved["param_groups"] for number in group["params"]]
        states = {int(number): _flat(state) for number, state in saved["state"].items()}
        masters = {int(number): master for number, master in saved.get("master", {}).items()}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has no state of an optimiser that can be read: {error}") from error
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len(numbers) != len(parameters) or not all(
        _fits(states.get(number, {}), masters.get(number), parameter, kinds)
        for number, parameter in zip(numbers, parameters, strict=True)
    ):
        raise CheckpointError(
            f"{path} is not of this AdamW or not of these {len(parameters)} trained parameters; resume with the "
            "policy, optimizer.kind, optimizer.vision_lr and train.frozen with which it was saved"
        )
    for number, parameter in zip(numbers, parameters, strict=True):
        if number in masters:
            _copy_rows(parameter, masters[number])
        state = states.get(number)
        if state and isinstance(optimizer, LocalShards):
            whole = {
                name: torch.as_tensor(value if isinstance(value, int) else value[...]) for name, value in state.items()
            }
            divide_state(optimizer, parameter, [(0, whole)], f"parameter {number}")
        elif state:
            moments = {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
            for moment, tensor in moments.items():
                _copy_rows(tensor, state[moment])
            optimizer.state[parameter] = {"step": state["step"][...].clone(), **moments}


def _flat(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state without the mapping in which bitsandbytes saves a part of it."""
    own = {name: value for name, value in state.items() if not isinstance(value, Mapping)}
    return own | {name: value for part in state.values() if isinstance(part, Mapping) for name, value in part.items()}


def _fits(state: Mapping[str, Any], master: Any | None, parameter: Tensor, kinds: Sequence[str]) -> bool:
    """Whether a state is empty or has these kinds of moments in the parameter's shape."""
    whole = [*(state[kind] for kind in kinds if kind in state), *([] if master is None else [master])]
    complete = not state or {"step", *kinds} <= set(state)
    return complete and all(tensor.get_shape() == list(parameter.shape) for tensor in whole)


def _copy_rows(target: Tensor, whole: Any) -> None:
    """Copies this rank's rows of a safetensors slice."""
    local, start = local_rows(target)
    if len(local):
        local.copy_(whole[start : start + len(local)] if target.ndim else whole[...])
