"""Loss aggregation as one denominator per row, so that the losses of micro-batches can be summed."""

from __future__ import annotations

import torch
from torch import Tensor

from osworld_gym.counts import check_count

AGGREGATIONS = ("group", "token", "sequence", "sum_norm", "seq-mean-token-sum", "seq-mean-token-mean")
UNITS = ("token", "step")


def row_denominators(
    lengths_R: Tensor,
    group_R: Tensor,
    slot_R: Tensor,
    *,
    aggregation: str = "group",
    unit: str = "token",
    max_length: int | None = None,
) -> Tensor:
    """The denominator of each row's summed loss. Paper eq. bepa-obj, ``Z = sum of |tau|`` per group.

    The rows must be all rows of one optimiser step, including groups whose advantages are 0. The sum over rows of
    (summed loss / denominator) is then, for any split into micro-batches:

    - ``group``: mean over groups of (sum over the group / Z), ``Z_group * G_step``; the paper's form.
    - ``token``: mean over all tokens of the step.
    - ``sequence``: mean over groups of the mean over their episodes of the mean over the episode's tokens.
    - ``sum_norm``: sum over tokens / (episodes of the step * ``max_length``).
    - ``seq-mean-token-sum``: mean over the episodes of the step of the sum over the episode's tokens; as in verl.
    - ``seq-mean-token-mean``: mean over the episodes of the step of the mean over the episode's tokens; as in verl
      with an episode as the sequence. It differs from ``sequence`` where groups have different numbers of episodes.

    verl's ``token-mean`` is ``token`` here (``verl/trainer/ppo/core_algos.py``, ``agg_loss``). See docs/definitions.md,
    "Losses and aggregation".

    Args:
        lengths_R: ``[R]`` integer, response tokens of each row.
        group_R: ``[R]`` integer, the group of each row.
        slot_R: ``[R]`` integer, the episode of each row inside its group.
        aggregation: one of :data:`AGGREGATIONS`.
        unit: ``token``, or ``step``: each row counts as 1.
        max_length: length of the longest possible episode in units; for ``sum_norm`` only.

    Returns:
        ``[R]`` float32, positive.

    Raises:
        ValueError: an unknown name, ``sum_norm`` without ``max_length``, ``max_length`` without ``sum_norm``, or
            shapes that differ.
    """
    check_aggregation(aggregation, unit, max_length)
    if lengths_R.ndim != 1 or lengths_R.numel() == 0 or not lengths_R.shape == group_R.shape == slot_R.shape:
        shapes = [tuple(values.shape) for values in (lengths_R, group_R, slot_R)]
        raise ValueError(f"lengths, groups and slots must be three non-empty [R]; got {shapes}")
    lengths = torch.ones_like(lengths_R) if unit == "step" else lengths_R
    lengths = lengths.to(torch.float64)
    groups, group_of_row = torch.unique(group_R, return_inverse=True)
    if aggregation == "token":
        out = lengths.sum().expand_as(lengths)
    elif aggregation == "group":
        out = _sum_by(lengths, group_of_row)[group_of_row] * len(groups)
    else:
        episodes, episode_of_row = torch.unique(torch.stack([group_of_row, slot_R]), dim=1, return_inverse=True)
        lengths_of_episodes = _sum_by(lengths, episode_of_row)
        if aggregation == "sequence":
            episodes_of_group = torch.bincount(episodes[0], minlength=len(groups))
            out = lengths_of_episodes[episode_of_row] * episodes_of_group[group_of_row] * len(groups)
        elif aggregation == "seq-mean-token-mean":
            out = lengths_of_episodes[episode_of_row] * episodes.shape[1]
        else:
            each = 1 if max_length is None else max_length
            out = torch.full_like(lengths, episodes.shape[1] * each)
    return out.clamp_min(1).to(torch.float32)


def _sum_by(values: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(int(index.max()) + 1, dtype=values.dtype, device=values.device).index_add(0, index, values)


def check_aggregation(aggregation: str, unit: str, max_length: int | None) -> None:
    """Checks the settings of :func:`row_denominators`, which calls this too.

    Raises:
        ValueError: an unknown name, ``sum_norm`` without ``max_length``, or ``max_length`` without ``sum_norm``.
    """
    if aggregation not in AGGREGATIONS:
        raise ValueError(f"aggregation must be one of {', '.join(AGGREGATIONS)}; got {aggregation!r}")
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}; got {unit!r}")
    if (aggregation == "sum_norm") != (max_length is not None):
        raise ValueError(f"sum_norm requires max_length, the others accept none; got {max_length} with {aggregation!r}")
    if max_length is not None:
        check_count("max_length", max_length)
