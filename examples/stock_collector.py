"""BEPA's rows from a stock TorchRL collector: ``python examples/stock_collector.py [batches]``.

The environment starts eight episodes per task; the collector yields batches of 96 steps; its ``postproc`` collects
complete groups, replaces a failure by a cached trace if all failed, and computes advantages.
"""

from __future__ import annotations

import argparse

from torchrl.collectors import Collector
from torchrl.envs import Compose

from bepa_torchrl import BEPALoss, GroupRows, TaskTraceCache, TraceReplacement
from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.data import groups_of
from bepa_torchrl.data import keys as K
from bepa_torchrl.policies import load_policy
from bepa_torchrl.rollout import OldLogProb
from osworld_gym.episode import EpisodeOptions
from osworld_gym.torchrl_env import OSWorldEnv

GROUP_SIZE, DESKTOPS, FRAMES = 8, 12, 96


def main(batches: int = 6) -> tuple[list[float], float]:
    """Collects ``batches`` batches; returns the advantages of the episodes, in order, and the last loss."""
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48)
    loss_module = BEPALoss(policy)
    options = EpisodeOptions(scaling=policy.image_scaling)
    env = OSWorldEnv("sim", DESKTOPS, split="train", group_size=GROUP_SIZE, observation="png", options=options)
    collector = Collector(
        env,
        policy,
        frames_per_batch=FRAMES,
        total_frames=batches * FRAMES,
        auto_register_policy_transforms=True,  # adds InitTracker
        postproc=Compose(GroupRows(GROUP_SIZE), TraceReplacement(TaskTraceCache()), OldLogProb(policy)),
    )
    advantages, loss = [], 0.0
    for rows in collector:  # [R]: the groups that this batch completed
        for group in groups_of(rows):
            values = [float(episode.rows[0][K.ADVANTAGE]) for episode in group]
            print(f"{group[0].task_id}: advantages {[round(value, 2) for value in values]}", flush=True)
            advantages += values
        if len(rows):
            rows.set(K.DENOMINATOR, loss_module.denominators(rows))
            loss = float(loss_module(rows).loss_objective.detach())
            print(f"{len(rows)} rows, loss {loss:.4f}", flush=True)
    collector.shutdown()
    return advantages, loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batches", type=int, nargs="?", default=6)
    main(**vars(parser.parse_args()))
