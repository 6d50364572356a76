"""What rank 0 may not do alone."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from history_rows import ShortPromptPolicy, made_episodes

from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.policies.transformers.lora import Lora, adapter_weights
from bepa_torchrl.scale.sharding.leader import Leader
from bepa_torchrl.training.rank_failures import RankLostError


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


class NoRanks:
    """Ranks that take part in nothing; one can be lost."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.lost: str | None = None
        self.reported = True

    def send(self, command: Mapping[str, Any]) -> None:
        self.commands.append(command["do"])

    def exited(self, seconds: float) -> str | None:
        del seconds
        return self.lost

    def ending(self) -> None:
        self.reported = False


def leader_of(policy: ShortPromptPolicy) -> tuple[Leader, NoRanks]:
    nothing: Any = None
    others = NoRanks()
    return Leader(policy, nothing, others), others


def test_services_get_whole_weights_with_adapters_merged() -> None:
    policy = ShortPromptPolicy(max_new_tokens=4, lora=Lora(rank=4, alpha=8))
    with torch.no_grad():
        for weight in adapter_weights(policy.model).values():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    leader, others = leader_of(policy)
    given = dict(leader.merged_weights(torch.bfloat16))
    expected = dict(policy.named_weights())
    assert given.keys() == expected.keys()
    assert not any("lora" in name for name in given)
    for name, weight in expected.items():
        torch.testing.assert_close(given[name], weight.bfloat16())
    assert dict(leader.weights(None)).keys() == adapter_weights(policy.model).keys()
    assert others.commands == ["gather", "gather"]


def test_another_thread_cannot_lead_the_ranks() -> None:
    """Its operations would come between those of the training thread, in another order on each rank."""
    leader, others = leader_of(ShortPromptPolicy(max_new_tokens=4))
    caught: list[BaseException] = []

    def gather() -> None:
        try:
            next(leader.merged_weights(torch.float32))
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=gather)
    thread.start()
    thread.join(60.0)
    assert "gather: the ranks are led by one thread, got another one" in str(caught[0])
    assert others.commands == []


def test_weights_that_are_being_gathered_are_gathered_to_the_end_before_anything_else() -> None:
    leader, others = leader_of(ShortPromptPolicy(max_new_tokens=4))
    weights = leader.merged_weights(torch.float32)
    next(weights)
    with pytest.raises(RuntimeError, match="begin: weights are being gathered; iterate over them to the end before"):
        leader.begin("reinforcement")
    for _ in weights:
        pass
    leader.begin("reinforcement")
    assert others.commands == ["gather", "begin"]


def test_a_rank_that_is_lost_while_rank_0_waits_is_an_error_which_ends_the_watch() -> None:
    leader, others = leader_of(ShortPromptPolicy(max_new_tokens=4))
    leader.check()
    assert others.reported
    others.lost = "rank 1 of 2 ended by signal SIGKILL"
    with pytest.raises(RankLostError, match="rank 1 of 2 ended by signal SIGKILL; go on with resume=true"):
        leader.check()
    assert not others.reported
