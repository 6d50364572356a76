"""Computes the advantages of one finalised group and stores them in its rows.

See docs/definitions.md, "Advantages"; paper eq. mixed-adv.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import EpisodeRows
from bepa_torchrl.functional import group_advantage


def set_advantages(members: Sequence[EpisodeRows], *, std: str, eps: float) -> None:
    """Sets ADVANTAGE ``[1, 1]`` float32 on every row: the same value for all rows of an episode.

    Args:
        members: the group's episodes after any replacement, at least one.
        std: rule for the standard deviation, see :func:`~bepa_torchrl.functional.group_advantage`.
        eps: added to the standard deviation.
    """
    returns = torch.tensor([episode.reward for episode in members])
    for episode, advantage in zip(members, group_advantage(returns, std=std, eps=eps), strict=True):
        for row in episode.rows:
            row.set(K.ADVANTAGE, advantage.reshape(1, 1).clone())
