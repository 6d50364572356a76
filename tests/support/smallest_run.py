"""Settings of the smallest run that trains: level2's injected expert traces give a random model something to learn."""

from __future__ import annotations

from pathlib import Path

from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import small_checkpoint

#: two optimiser steps per iteration, so that old log-probs are computed, on injected traces and own rollouts
TWO_STEPS = (
    "eval.every=1",
    "eval.final_episodes=1",
    "record.every=0",
    "train.minibatch_groups=1",
)
#: of a run on several ranks: a lost one is noticed before a test's own deadline
RANK_TIMEOUT = "train.rank_timeout=200"
TWO_RANKS = ("train.ranks=2", RANK_TIMEOUT)


def smallest_run(folder: Path) -> list[str]:
    """The settings; the random checkpoint is written to ``folder``."""
    checkpoint = TransformersPolicy(small_checkpoint(), preset="compact").save(folder / "random")
    return [
        "experiment=smoke",
        "algo=level2",
        "compare=[]",
        f"policy.checkpoint={checkpoint}",
        "policy.max_new_tokens=8",
        "env.max_steps=1",
        "env.desktops=4",
        "env.train_limit=2",
        "env.held_out_limit=1",
    ]
