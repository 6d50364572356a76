"""8-bit moments in checkpoints: blocks of a rank's rows, which another number of ranks rounds to blocks of its own.

In a rank's file they are ``rows/<name of the state>/<name>``. The same number of ranks resumes with the same bits.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bepa_torchrl.scale.sharding.checkpoints.row_ranges import Part, join_rows, local_rows
from bepa_torchrl.training.local_shards import LocalShards
from bepa_torchrl.training.precision import master_of

_ROWS = "rows"
_MODULE = "bepa_torchrl.training.adam_8bit"  # requires an extra, so that it is imported only where it is needed
States = Mapping[str, Mapping[str, Tensor]]


def has_8bit_moments(optimizer: Optimizer) -> bool:
    """Whether the optimiser is an 8-bit AdamW, of plain tensors or of a rank's rows."""
    module = sys.modules.get(_MODULE)
    return isinstance(optimizer, LocalShards) or (module is not None and isinstance(optimizer, module.AdamW8bit))


def rows_states(parameters: Mapping[str, Tensor], optimizer: LocalShards) -> dict[str, Tensor]:
    """The state of this rank's rows of the trained parameters, by the names of a rank's file."""
    trained = [weight for group in optimizer.param_groups for weight in group["params"]]
    names = {id(parameter): name for name, parameter in parameters.items()}
    return {
        f"{_ROWS}/{kind}/{names[id(weight)]}": value
        for weight in trained
        for kind, value in optimizer.rows_state(weight).items()
    }


def load_rows_states(file: Any, parameters: Mapping[str, Tensor], optimizer: LocalShards) -> None:
    """Loads the file of the same rank of as many ranks: the same bits."""
    for name, state in _states(file).items():
        optimizer.set_rows_state(parameters[name], state)


def divide_states(files: Sequence[Any], parameters: Mapping[str, Tensor], optimizer: Optimizer) -> None:
    """Loads the files of another number of ranks: this rank's rows of their moments, rounded once more.

    Raises:
        CheckpointError: rows are missing.
    """
    parts = defaultdict[str, list[tuple[int, Mapping[str, Tensor]]]](list)
    for file in files:
        starts = file.metadata() or {}
        for name, state in _states(file).items():
            if (first := starts.get(f"model/{name}")) is not None:
                parts[name].append((int(first), state))
    for name, shards in parts.items():
        divide_state(optimizer, parameters[name], shards, name)


@torch.no_grad()
def divide_state(
    optimizer: Optimizer, parameter: Tensor, parts: Sequence[tuple[int, Mapping[str, Tensor]]], name: str
) -> None:
    """Gives an 8-bit AdamW this rank's rows of the moments of a parameter.

    Args:
        optimizer: the optimiser of plain tensors or of a rank's rows.
        parameter: sharded or whole.
        parts: the first row of each part, and its state in the optimiser that saved it.
        name: the name of the parameter, for an error.

    Raises:
        CheckpointError: rows are missing.
    """
    from bepa_torchrl.training.adam_8bit import moments_of, set_moments

    local, start = local_rows(parameter)
    if not local.numel():
        return
    saved = [(first, moments_of(state)) for first, state in parts]

    def rows_of(number: int) -> Tensor:
        shards = [Part(first, len(moments[number]), moments[number]) for first, moments in saved]
        return join_rows(shards, start, len(local), f"the moments of {name}").reshape(local.shape)

    inner, rows = optimizer, master_of(optimizer, parameter)
    if isinstance(optimizer, LocalShards):
        inner, rows = optimizer.inner, optimizer.rows(parameter)
    set_moments(inner, rows, int(parts[0][1]["step"]), (rows_of(0), rows_of(1)))


def _states(file: Any) -> States:
    """The states in a rank's file, by the parameter's name."""
    states = defaultdict[str, dict[str, Tensor]](dict)
    for key in list(file.keys()):
        if key.startswith(f"{_ROWS}/"):
            _, kind, name = key.split("/", 2)
            states[name][kind] = file.get_tensor(key)
    return states
