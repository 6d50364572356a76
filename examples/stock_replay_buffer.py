"""BEPALoss with a stock replay buffer and optimiser instead of our trainer: ``python examples/stock_replay_buffer.py``.

One optimiser step per batch of complete groups; a stock ReplayBuffer yields the micro-batches, whose losses add up.
"""

from __future__ import annotations

import argparse

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyStackStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.envs import Compose

from bepa_torchrl import BEPALoss, GroupRows, TaskTraceCache, TraceReplacement
from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.data import keys as K
from bepa_torchrl.policies import load_policy
from bepa_torchrl.rollout import OldLogProb
from osworld_gym.episode import EpisodeOptions
from osworld_gym.torchrl_env import OSWorldEnv

GROUP_SIZE, DESKTOPS, FRAMES, MICRO_BATCH = 8, 12, 96, 32


def main(batches: int = 6, lr: float = 3e-4) -> list[float]:
    """Trains on ``batches`` batches; returns the losses of the optimiser steps."""
    policy = load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48, train_vision=False)
    loss_module = BEPALoss(policy)
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr, weight_decay=0.0)
    options = EpisodeOptions(scaling=policy.image_scaling)
    env = OSWorldEnv("sim", DESKTOPS, split="train", group_size=GROUP_SIZE, observation="png", options=options)
    collector = Collector(
        env,
        policy,
        frames_per_batch=FRAMES,
        total_frames=batches * FRAMES,
        auto_register_policy_transforms=True,
        postproc=Compose(GroupRows(GROUP_SIZE), TraceReplacement(TaskTraceCache()), OldLogProb(policy)),
    )
    losses = []
    for rows in collector:
        if not len(rows) or not any(row[K.ADVANTAGE].any() for row in rows):
            continue  # no group is complete, or none has both a success and a failure
        rows.set(K.DENOMINATOR, loss_module.denominators(rows))  # of the whole step, before it is split
        storage, sampler = LazyStackStorage(len(rows)), SamplerWithoutReplacement()
        buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=MICRO_BATCH)
        buffer.extend(rows)
        optimizer.zero_grad()
        total = 0.0
        for part in buffer:
            loss = loss_module(part).loss_objective
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        policy.version += 1
        losses.append(total)
        print(f"update {len(losses)}: {len(rows)} rows, loss {total:+.4f}", flush=True)
    collector.shutdown()
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batches", type=int, nargs="?", default=6)
    main(**vars(parser.parse_args()))
