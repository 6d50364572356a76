"""Groups of episodes on switchable lamps, collected in lock-step: what asynchronous collectors must equal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor

from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.testing import LampEnv, ScriptedPolicy, SeedKey, lamp_task, lamp_vector, summary

GROUPS, SIZE = 2, 3  # groups of a batch, episodes of a group


class Learner(ScriptedPolicy):
    """A scripted policy without weights that a trainer can publish."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def wins(key: SeedKey) -> bool:
    """About half of the episodes, determined by the seed key."""
    return hash(key) % 2 == 0


def lock_step(count: int) -> list[list[tuple[Any, ...]]]:
    """Summaries of the first batches of the synchronous collector."""
    collector = GroupRolloutCollector(
        LampEnv(lamp_vector(4)), Learner(wins), [lamp_task(n) for n in range(5)], groups=GROUPS, group_size=SIZE, seed=3
    )
    batches = [summary(batch) for batch in islice(collector, count)]
    collector.shutdown()
    return batches
