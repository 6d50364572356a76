"""Asynchronous rollouts with TorchRL's interface: ``python examples/async_collector.py [batches]``.

Two desktops play in threads while the policy is trained; ``update_policy_weights_()`` sends its weights to the service
that samples, by the scheme given to the collector. The update here is a step of size 1e-6 that stands for yours.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import islice

import torch

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.data import keys as K
from bepa_torchrl.policies import TransformersPolicy, load_policy
from bepa_torchrl.rollout import ServiceWeightSync
from bepa_torchrl.scale import AsyncGroupCollector, EnvWorker, QueueService, RolloutService
from osworld_gym.desktops import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks import load_suite
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.vector import DesktopVector

GROUPS, SIZE = 2, 4  #: per batch; rollouts of a group


def update(policy: TransformersPolicy) -> None:
    """Stands for an optimiser step: other weights, of the next version."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1e-6)
    policy.version += 1


def main(batches: int = 3) -> list[list[int]]:
    """Collects the batches and returns the versions of the policy that sampled each of them."""
    policy, sampler = (load_policy(tiny_checkpoint(), preset="compact", max_new_tokens=48) for _ in range(2))
    env, tasks = OSWorldEnv(provider="sim", num_envs=1, split="train"), load_suite("sim").split("train")
    make_vector = partial(DesktopVector, SimDesktop, 1, EpisodeOptions(max_steps=8, scaling=policy.image_scaling))
    queue = QueueService(batch_groups=GROUPS, max_staleness=1)
    service = RolloutService(sampler, require_weights=True)
    collector = AsyncGroupCollector(
        env,
        policy,
        tasks,
        groups=GROUPS,
        group_size=SIZE,
        queue=queue,
        weight_sync_schemes={"policy": ServiceWeightSync(service.load_weights)},
    )
    worker = EnvWorker("node", queue, service, collector.plan, make_vector, desktops=2)
    versions = []
    try:
        rows: Iterator[object] = iter(collector)
        for batch in islice(rows, batches):  # rows [R], the steps of GROUPS * SIZE episodes
            versions.append(sorted({int(row[K.POLICY_VERSION]) for row in batch}))
            print(f"{len(batch)} steps, sampled by version {versions[-1]}; the policy has {policy.version}")
            update(policy)
    finally:
        worker.stop(30.0)
        service.close()
        collector.shutdown()
    return versions


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batches", type=int, nargs="?", default=3)
    main(**vars(parser.parse_args()))
