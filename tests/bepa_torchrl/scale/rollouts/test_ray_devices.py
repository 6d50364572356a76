"""What a policy on a pretend accelerator gives to Ray is on the CPU."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from device_checks import Pair, check_sent_weights
from pretend_device import pretend_device
from process_groups import errors_of, run_ranks
from ray_stand_in import StandInRay

from bepa_torchrl.scale.rollouts import ray_cluster, ray_services

pytestmark = pytest.mark.ray


def publish_by_ray(folder: Path, tuning: str) -> None:
    ray = StandInRay()
    with pretend_device(), ExitStack() as stack:
        pair = Pair("qwen2_5_vl", tuning, torch.float32, folder)
        for module in (ray_services, ray_cluster):
            stack.enter_context(patch.object(module, "ray", ray))
        pool = ray_services.ServicePool(lambda: pair.device, replicas=1, check_every=60.0)
        pool.publish(pair.device.named_weights(), 3)
        pool.stop()
        (sent,) = ray.put_values
        check_sent_weights(pair, dict(sent))


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_weights_for_ray_are_on_the_cpu(tmp_path: Path, tuning: str) -> None:
    assert run_ranks(publish_by_ray, 1, tmp_path, tuning, deadline=550.0) == [0], errors_of(tmp_path)
