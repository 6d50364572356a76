"""The anchor: which rows of an optimiser step have an additional term, and with which weight."""

from __future__ import annotations

import torch
from torch import Tensor


def anchor_rows(returns_R: Tensor, off_policy_R: Tensor, group_R: Tensor) -> Tensor:
    """The rows of the policy's own successes in groups without an injected trace; not in the paper.

    With ``injection=on_failure`` these are all groups with a success. Those of LUFFY and RL+SFT with an expert's trace
    are left out.

    Args:
        returns_R: ``[R]`` real, the return of each row's episode; 1 is a success.
        off_policy_R: ``[R]`` bool, rows of injected traces.
        group_R: ``[R]`` integer, the group of each row; all rows of a group are there.

    Returns:
        ``[R]`` bool.

    Raises:
        ValueError: shapes that differ or are not ``[R]``.
    """
    if returns_R.ndim != 1 or not returns_R.shape == off_policy_R.shape == group_R.shape:
        shapes = [tuple(values.shape) for values in (returns_R, off_policy_R, group_R)]
        raise ValueError(f"returns, off_policy and groups must be three [R]; got {shapes}")
    return (returns_R == 1) & ~torch.isin(group_R, group_R[off_policy_R])


def term_weights(lengths_R: Tensor, chosen_R: Tensor) -> Tensor:
    """The weight of each row's summed term, as the anchor's: 1 / (response tokens of the chosen rows), 0 on other rows.

    The sum over rows of (weight * the row's sum over tokens) is then the mean over the chosen rows' tokens, for any
    split of the rows into micro-batches.

    Args:
        lengths_R: ``[R]`` integer, response tokens of each row of one optimiser step.
        chosen_R: ``[R]`` bool, the rows with the term, as of :func:`anchor_rows`.

    Returns:
        ``[R]`` float32.
    """
    tokens = lengths_R[chosen_R].sum().clamp_min(1)
    return torch.where(chosen_R, 1.0 / tokens, 0.0)
