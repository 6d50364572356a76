"""Computes the advantages of one finalised group and stores them in its rows.

See docs/definitions.md, "Advantages"; paper eq. mixed-adv.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import EpisodeRows
from bepa_torchrl.functional import group_advantage, leave_one_out_advantage, maxrl_advantage


def set_advantages(members: Sequence[EpisodeRows], *, kind: str, std: str, eps: float) -> None:
    """Sets ADVANTAGE ``[1, 1]`` float32 on every row: the same value for all rows of an episode.

    Args:
        members: the group's episodes after any replacement, at least one.
        kind: ``grpo`` (:func:`~bepa_torchrl.functional.group_advantage`), ``leave_one_out``
            (:func:`~bepa_torchrl.functional.leave_one_out_advantage`) or ``maxrl``
            (:func:`~bepa_torchrl.functional.maxrl_advantage`). An injected trace is a member as any other.
        std: rule for the standard deviation; for ``grpo`` only, like ``eps``.
        eps: added to the standard deviation.
    """
    returns = torch.tensor([episode.reward for episode in members])
    if kind == "leave_one_out":
        advantages = leave_one_out_advantage(returns)
    elif kind == "maxrl":
        advantages = maxrl_advantage(returns)
    else:
        advantages = group_advantage(returns, std=std, eps=eps)
    for episode, advantage in zip(members, advantages, strict=True):
        for row in episode.rows:
            row.set(K.ADVANTAGE, advantage.reshape(1, 1).clone())
