"""Routing on Ray: the turns of a service that is killed go to the other one at once; it is used again afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import pytest
import ray
import torch
from lamp_groups import Learner, wins
from ray_runs import wait_for

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.scale.rollouts.ray_routing import ray_services
from bepa_torchrl.scale.rollouts.ray_services import ServicePool
from bepa_torchrl.scale.rollouts.routing import ServiceRouter

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),
]


def play_turn(episode: Any) -> None:
    assert len(episode.sample([Prompt(torch.tensor([1]), ())], [(0, 0)], 1.0)) == 2


def test_turns_of_a_killed_service_go_to_the_other_and_come_back() -> None:
    pool = ServicePool(lambda: Learner(wins), replicas=2, check_every=0.5, num_cpus=0)
    try:
        pool.publish([], 0)
        router = ray_services(pool.actors, 120.0, 8)
        assert isinstance(router, ServiceRouter)
        episode: Any = router.episode(0)
        for _ in range(2):
            episode.render([])
            play_turn(episode)
        assert sorted(pool.answered()) == [0, 2]
        process, *_ = ray.get(pool.actors[0].state.remote(), timeout=120)
        os.kill(process, signal.SIGKILL)
        episode.render([])
        play_turn(episode)
        wait_for(lambda: pool.restarts == 1)

        def played_at_both() -> Sequence[int]:
            for group in (0, 1):
                fresh: Any = router.episode(group)
                fresh.render([])
                play_turn(fresh)
            counts = pool.answered()
            return counts if len(counts) == 2 and min(counts) > 0 else []

        wait_for(played_at_both)
        assert router.moved == 1
    finally:
        pool.stop()
