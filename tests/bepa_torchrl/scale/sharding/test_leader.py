"""What rank 0 may not do alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from history_rows import ShortPromptPolicy, made_episodes

from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.scale.sharding.leader import Leader


def test_the_sharded_policy_is_not_scored_by_rank_0_alone() -> None:
    """It would wait for the other ranks until the timeout."""
    policy, alone = ShortPromptPolicy(max_new_tokens=4), ShortPromptPolicy(max_new_tokens=4)
    rows = row_list(made_episodes(alone, (1,)))
    nothing: Any = None
    leader = Leader(policy, nothing, nothing)
    with torch.no_grad(), pytest.raises(RuntimeError, match="scored by all ranks; score with its whole copy"):
        policy.get_dist(made_episodes(alone, (1,)))
    with pytest.raises(ValueError, match="expected the policy that is sharded over the ranks, got another one"):
        leader.fill_old_log_probs(alone, rows, max_tokens=512)
