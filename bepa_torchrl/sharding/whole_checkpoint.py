"""Loads the checkpoint of one process into a policy that is divided over ranks: each rank reads its own rows.

The checkpoint's components are the weights (:class:`bepa_torchrl.training.checkpoint.Weights`) and the optimiser's
state, which numbers the parameters in the order of its groups and has the float32 masters of half-precision weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.optim import Optimizer
from torchrl.checkpoint import CheckpointError

from bepa_torchrl.sharding.checkpoint import local_rows, saved_parameters
from bepa_torchrl.storage.state import open_state
from bepa_torchrl.training.checkpoint import VERSION_FILE, WEIGHTS_FILE
from bepa_torchrl.training.local_shards import LocalShards

_MOMENTS = ("exp_avg", "exp_avg_sq")


@torch.no_grad()
def load_whole_weights(policy: Any, path: Path) -> None:
    """Loads the weights and the policy's version, in place.

    Args:
        policy: of the same architecture, sharded or whole.
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
    found = {name: file.get_slice(name) for name in list(file.keys())}
    shapes = {name: list(parameter.shape) for name, parameter in saved_parameters(policy).items()}
    if set(own.values()) != set(found) or any(found[own[name]].get_shape() != shapes[name] for name in own):
        raise CheckpointError(f"{path / WEIGHTS_FILE} is of another model: names or shapes of its weights differ")
    for name, parameter in saved_parameters(policy).items():
        _copy_rows(parameter, found[own[name]])
    policy.version = version


@torch.no_grad()
def load_whole_optimizer(optimizer: Optimizer, path: Path) -> None:
    """Loads AdamW's state and, over the rounded weights, the float32 masters if there are any, in place.

    Args:
        optimizer: AdamW of float32 parameters, sharded or whole; its learning rates and other options stay.
        path: folder of the component.

    Raises:
        CheckpointError: the state is damaged, of another optimiser or of other parameters, or of 8 bits; nothing is
            changed.
    """
    if isinstance(optimizer, LocalShards):
        raise CheckpointError(
            f"{path} has 8-bit moments in the blocks of one process, which ranks cannot divide; "
            "resume with train.ranks=1"
        )
    try:
        saved = open_state(path)["optimizer"]
        numbers = [int(number) for group in saved["param_groups"] for number in group["params"]]
        states = {int(number): state for number, state in saved["state"].items()}
        masters = {int(number): master for number, master in saved.get("master", {}).items()}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} has no state of an optimiser that can be read: {error}") from error
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len(numbers) != len(parameters) or not all(
        _fits(states.get(number, {}), masters.get(number), parameter)
        for number, parameter in zip(numbers, parameters, strict=True)
    ):
        raise CheckpointError(
            f"{path} is not of AdamW or not of these {len(parameters)} trained parameters; resume with the policy, "
            "optimizer.kind, optimizer.vision_lr and train.frozen with which it was saved"
        )
    for number, parameter in zip(numbers, parameters, strict=True):
        if number in masters:
            _copy_rows(parameter, masters[number])
        if state := states.get(number):
            moments = {moment: torch.zeros_like(parameter) for moment in _MOMENTS}
            for moment, tensor in moments.items():
                _copy_rows(tensor, state[moment])
            optimizer.state[parameter] = {"step": state["step"][...].clone(), **moments}


def _fits(state: Mapping[str, Any], master: Any | None, parameter: Tensor) -> bool:
    whole = [*(state[moment] for moment in _MOMENTS if moment in state), *([] if master is None else [master])]
    complete = set(state) in (set(), {"step", *_MOMENTS})
    return complete and all(tensor.get_shape() == list(parameter.shape) for tensor in whole)


def _copy_rows(target: Tensor, whole: Any) -> None:
    """Copies this rank's rows of a safetensors slice."""
    local, start = local_rows(target)
    if len(local):
        local.copy_(whole[start : start + len(local)] if target.ndim else whole[...])
