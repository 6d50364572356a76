"""The vision tower in passes of a limited number of patches, and the size of the cache of its features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.factory import make_policy
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.transformers.vision_features import consecutive
from bepa_torchrl.testing import picture, small_checkpoint

#: 256, 256, 64, 336 and 256 patches of 8 x 8 pixels
IMAGES = [picture(1), picture(2), picture(3, (64, 64)), picture(4, (192, 112)), picture(5)]


def watched(policy: TransformersPolicy) -> list[int]:
    """The patches of each pass through the tower from now on."""
    passes: list[int] = []
    inner = policy.model.get_image_features

    def record(patches: Tensor, *arguments: Any, **options: Any) -> Any:
        passes.append(len(patches))
        return inner(patches, *arguments, **options)

    policy.model.get_image_features = record
    return passes


def test_items_are_divided_in_order() -> None:
    assert [list(run) for run in consecutive([3, 3, 5, 9, 1], 6)] == [[0, 1], [2], [3], [4]]
    assert consecutive([], 6) == []
    assert consecutive([7], 6) == [range(1)]


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("train_vision", [True, False])
def test_features_and_gradients_are_those_of_one_pass(family: str, train_vision: bool) -> None:
    policy = TransformersPolicy(small_checkpoint(family=family), preset="compact", train_vision=train_vision)
    passes = watched(policy)
    found, gradients = [], []
    for limit in (None, 520):
        policy.encoder.max_patches = limit
        policy.encoder.forget()
        policy.model.zero_grad()
        features = policy.encoder.features(IMAGES)
        found.append(torch.cat(features))
        if train_vision:
            (found[-1] * torch.arange(len(found[-1]))[:, None]).mean().backward()
            gradients.append([weight.grad.clone() for weight in policy.model.model.visual.parameters()])
    assert passes == [1168, 512, 400, 256]
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)
    for a, b in zip(*gradients, strict=True) if train_vision else ():
        torch.testing.assert_close(b, a, atol=1e-3, rtol=1e-3)


def test_settings_reach_the_encoder() -> None:
    """Of the cache, the features that fit: 64 of float32 and width 96 are 24,576 bytes."""
    config = load_config(
        ["experiment=smoke", "policy.feature_cache_gb=6e-5", "policy.max_vision_patches=300", "train.frozen=[visual]"]
    )
    policy = make_policy(config, seed=0)
    assert isinstance(policy, TransformersPolicy)
    policy.model.model.visual.requires_grad_(False)
    assert policy.encoder.capacity_bytes == 60_000
    passes = watched(policy)
    policy.encoder.features(IMAGES[:2])
    assert passes == [256, 256]
    policy.encoder.features(IMAGES[4:])
    policy.encoder.features(IMAGES[1:2])
    assert len(passes) == 3
    policy.encoder.features(IMAGES[:1])
    assert len(passes) == 4
