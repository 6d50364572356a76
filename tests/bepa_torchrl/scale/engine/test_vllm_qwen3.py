"""Qwen3-VL with vLLM: tokens equal the built-in sampler's, with features of several levels, before and after a sync."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from vllm_engine import OPTIONS, assert_as_trainer

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine.sampler import VLLMSampler
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.types import PromptContext

pytestmark = pytest.mark.vllm


@pytest.fixture
def policy() -> Iterator[VLLMSampler]:
    trainer = TransformersPolicy(small_checkpoint(family="qwen3_vl"), **OPTIONS)
    found = VLLMSampler(trainer, kv_cache_gb=0.25, max_rows=8)
    yield found
    found.close()


def prompts_of(policy: VLLMSampler) -> list[Prompt]:
    """With one, two and three screenshots, of two sizes."""
    screens = [picture(0), picture(1, (192, 112)), picture(2)]
    contexts = [PromptContext("mute", screens[: step + 1], ["Action: wait()"] * step) for step in range(3)]
    return [prompt for prompt in policy.renderer.render(contexts) if prompt is not None]


def test_tokens_equal_the_built_in_samplers_also_after_a_sync(policy: VLLMSampler) -> None:
    trainer, prompts = policy.trainer, prompts_of(policy)
    keys = [(7, 0, row, 0, 0) for row in range(len(prompts))]
    for version in range(2):
        policy.sync()  # verified by the probe, with no, one and two images
        assert policy.version == version
        for temperature in (0.0, 1.0):
            found = policy.sample(prompts, keys, temperature=temperature)
            assert_as_trainer(found, trainer, prompts, keys, temperature=temperature)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(version)
            for weight in trainer.parameters():
                weight.add_(0.02 * torch.randn(weight.shape, generator=generator))
        trainer.encoder.forget()
        trainer.version += 1
    assert policy.drain_metrics()["engine/probe_error_max"] < 1e-4
