"""The checks of renderers, samplers and learners pass on ours, and fail on others that break one rule each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, Learner, Policy, Renderer, Sampler
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.policies.transformers.renderer import ChatRenderer, load_renderer
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService, ServedSampler
from bepa_torchrl.scale.sharding.sampling_copy import SamplingCopy
from bepa_torchrl.testing import ScriptedPolicy, check_learner, check_renderer, check_sampler, picture, small_checkpoint
from osworld_gym.types import PromptContext


def make(kind: type[TransformersPolicy] = TransformersPolicy, **options: Any) -> TransformersPolicy:
    return kind(small_checkpoint(), **({"preset": "compact", "max_new_tokens": 5} | options))


@pytest.mark.parametrize(
    ("family", "action_text", "preset"),
    [
        ("qwen2_5_vl", "uitars", "paper"),
        ("qwen3_vl", "uitars", "paper"),
        ("qwen2_5_vl", "opencua", "thought_history"),
    ],
)
def test_the_renderers_keep_it(family: str, action_text: str, preset: str) -> None:
    renderer = TransformersPolicy(small_checkpoint(family=family), action_text=action_text, preset=preset).renderer
    assert isinstance(renderer, Renderer)
    check_renderer(renderer, extends=action_text == "uitars")


def test_a_renderer_without_weights_is_the_policys(tmp_path: Path) -> None:
    policy = make(preset="paper")
    folder = policy.save(tmp_path / "saved")
    (folder / "model.safetensors").unlink()
    renderer = load_renderer(folder)
    check_renderer(renderer, extends=True)
    (own,), (other,) = (r.render([PromptContext("mute", [picture(3)])]) for r in (policy.renderer, renderer))
    assert torch.equal(own.tokens, other.tokens)
    assert renderer.image_scaling == policy.image_scaling
    assert renderer.processor.end_token_ids == policy.renderer.processor.end_token_ids


@pytest.mark.parametrize("train_vision", [True, False])
def test_the_transformers_policy_samples_and_learns(train_vision: bool) -> None:
    policy = make(train_vision=train_vision)
    assert isinstance(policy, Policy)
    assert not isinstance(policy, EngineSampler)
    check_sampler(policy)
    check_learner(policy, policy)


def test_the_scripted_policy_keeps_it() -> None:
    policy = ScriptedPolicy(lambda _: True)
    assert isinstance(policy, Sampler)
    assert not isinstance(policy, Learner)
    check_renderer(policy.renderer)
    check_sampler(policy, stochastic=False)
    with pytest.raises(AssertionError, match="eight keys gave the same response"):
        check_sampler(policy)


def test_a_service_and_a_copy_keep_it() -> None:
    copy, trained = make(), make()
    sampler = SamplingCopy(lambda: nullcontext((copy, copy)), trained, trained.named_weights)
    assert isinstance(sampler, EngineSampler)
    check_sampler(sampler)
    check_learner(copy, sampler)
    service = RolloutService(copy)
    try:
        check_renderer(ServedSampler(service).renderer)
        check_sampler(ServedSampler(service))
    finally:
        service.close()


class BatchDependent(TransformersPolicy):
    """Samples by the row's index instead of its key."""

    def sample(self, prompts: Sequence[Prompt], keys: Any, *, temperature: float = 1.0) -> list[Response]:
        return super().sample(prompts, [(i,) for i in range(len(keys))], temperature=temperature)


class Tempered(TransformersPolicy):
    """Reports other log-probs than those of the model."""

    def sample(self, prompts: Sequence[Prompt], keys: Any, *, temperature: float = 1.0) -> list[Response]:
        drawn = super().sample(prompts, keys, temperature=temperature)
        return [replace(response, log_probs=response.log_probs * 1.1) for response in drawn]


class Stale(TransformersPolicy):
    """Sets the new version and keeps the old weights."""

    def load_weights(self, weights: Any, *, version: int) -> None:
        if "no.such.weight" in dict(weights):
            raise ValueError
        self.version = version


class HalfLoaded(TransformersPolicy):
    """Ignores unknown weights."""

    def load_weights(self, weights: Any, *, version: int) -> None:
        known = self.model.state_dict()
        super().load_weights([(name, weight) for name, weight in weights if name in known], version=version)


class Retokenised(ChatRenderer):
    """Encodes past responses again from their texts."""

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        return super().render([replace(context, response_tokens=()) for context in contexts])


class Blind(ChatRenderer):
    """Renders every context as the first."""

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        return super().render([contexts[0]] * len(contexts)) if contexts else []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Retokenised, "does not begin with the tokens of the prompt and response"),
        (Blind, "two different contexts gave the same prompt"),
    ],
)
def test_a_renderer_that_breaks_a_rule_is_found(kind: type[ChatRenderer], message: str) -> None:
    given = make(preset="paper").renderer
    renderer = kind(given.processor, model_type=given.model_type, max_prompt_tokens=given.max_prompt_tokens)
    with pytest.raises(AssertionError, match=message):
        check_renderer(renderer, extends=True)


def test_a_sampler_whose_draws_depend_on_the_batch_is_found() -> None:
    with pytest.raises(AssertionError, match="draws should depend on keys"):
        check_sampler(make(BatchDependent))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Tempered, "when sampled and when scored"),
        (Stale, "old weights or a cache"),
        (HalfLoaded, "does not have"),
    ],
)
def test_a_learner_that_breaks_a_rule_is_found(kind: type[TransformersPolicy], message: str) -> None:
    policy = make(kind)
    check_sampler(policy)
    with pytest.raises(AssertionError, match=message):
        check_learner(policy, policy)


def test_weights_are_loaded_whole_or_not_at_all() -> None:
    policy, other = make(), TransformersPolicy(small_checkpoint(seed=1), preset="compact", max_new_tokens=5)
    weights = dict(other.named_weights())
    first = {name: weight.clone() for name, weight in policy.named_weights()}
    name = next(iter(weights))
    for given, fault in (
        ({k: v for k, v in weights.items() if k != name}, "missing"),
        (weights | {"more": torch.zeros(1)}, "unknown"),
        (weights | {name: torch.zeros(1)}, "of another shape"),
    ):
        with pytest.raises(ValueError, match=fault):
            policy.load_weights(given.items(), version=3)
    assert policy.version == 0
    assert all(torch.equal(weight, first[name]) for name, weight in policy.named_weights())
    policy.load_weights(weights.items(), version=3)
    assert policy.version == 3
    assert all(torch.equal(weight, weights[name]) for name, weight in policy.named_weights())
