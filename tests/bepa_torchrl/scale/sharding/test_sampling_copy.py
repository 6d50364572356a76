"""SamplingCopy: the copy gets the weights in training once per version, and then its engine does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from history_rows import ShortPromptPolicy
from torch import Tensor

from bepa_torchrl.policies.base import EngineSampler
from bepa_torchrl.policies.transformers.lora import Lora, adapter_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.sharding.sampling_copy import SamplingCopy
from bepa_torchrl.testing import picture
from osworld_gym.types import PromptContext


class Trained(ShortPromptPolicy):
    """Counts how often its weights are gathered."""

    gathered = 0

    def weights(self, _dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        self.gathered += 1
        yield from self.named_weights()

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
        self.version += 1


class Engine(ShortPromptPolicy):
    """An engine that takes its weights from the only policy in ``source``."""

    source: tuple[TransformersPolicy, ...] = ()
    concurrent = False

    def sync(self) -> None:
        (policy,) = self.source
        self.load_weights(policy.named_weights(), version=policy.version)

    def drain_metrics(self) -> dict[str, float]:
        return {"engine/restarts": 0.0}

    def close(self) -> None:
        pass


def log_probs(policy: Any) -> Tensor:
    context = PromptContext("open the trash", screenshots=[picture(1, (64, 64))])
    (prompt,) = policy.renderer.render([context])
    (response,) = policy.sample([prompt], [(1, 2, 3)])
    return torch.as_tensor(response.log_probs)


def test_the_copy_gets_new_weights_once() -> None:
    torch.manual_seed(0)
    trained, copy = Trained(max_new_tokens=4), ShortPromptPolicy(max_new_tokens=4)
    sampler = SamplingCopy(lambda: nullcontext((copy, copy)), trained, trained.weights)
    assert isinstance(sampler, EngineSampler)
    sampler.sync()
    assert trained.gathered == 0  # both are the checkpoint
    trained.step()
    before = log_probs(sampler)
    sampler.sync()
    sampler.sync()
    assert (trained.gathered, sampler.version, copy.version) == (1, 1, 1)
    torch.testing.assert_close(log_probs(sampler), log_probs(trained))
    assert not torch.equal(log_probs(sampler), before)
    assert set(sampler.drain_metrics()) == {"seconds_sync"}


def test_a_copy_with_adapters_gets_the_adapters_alone() -> None:
    torch.manual_seed(0)
    lora = Lora(rank=4, alpha=8)
    trained, copy = (ShortPromptPolicy(max_new_tokens=4, lora=lora) for _ in range(2))
    given: list[str] = []

    def weights(_dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
        for name, weight in adapter_weights(trained.model).items():
            given.append(name)
            yield name, weight.detach()

    sampler = SamplingCopy(lambda: nullcontext((copy, copy)), trained, weights)
    with torch.no_grad():
        for weight in adapter_weights(trained.model).values():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    trained.version = 1
    before = log_probs(sampler)
    sampler.sync()
    assert given == list(adapter_weights(copy.model))
    torch.testing.assert_close(log_probs(sampler), log_probs(trained))
    assert not torch.equal(log_probs(sampler), before)


def test_an_engine_gets_its_weights_from_the_copy() -> None:
    torch.manual_seed(0)
    trained, copy, engine = Trained(max_new_tokens=4), ShortPromptPolicy(max_new_tokens=4), Engine(max_new_tokens=4)
    engine.source = (copy,)
    sampler = SamplingCopy(lambda: nullcontext((copy, engine)), trained, trained.weights)
    trained.step()
    sampler.sync()
    assert sampler.version == engine.version == 1
    torch.testing.assert_close(log_probs(sampler), log_probs(trained))
    assert set(sampler.drain_metrics()) == {"seconds_sync", "engine/restarts"}


def test_the_copy_is_made_when_it_is_needed_and_can_be_released() -> None:
    """Scoring needs no engine; a copy that is made again has the weights of its next sync."""
    torch.manual_seed(0)
    trained, events = Trained(max_new_tokens=4), list[str]()

    @contextmanager
    def make() -> Iterator[tuple[TransformersPolicy, ShortPromptPolicy]]:
        events.append("made")
        copy = ShortPromptPolicy(max_new_tokens=4)
        yield copy, copy
        events.append("ended")

    sampler = SamplingCopy(make, trained, trained.weights)
    assert sampler.renderer is trained.renderer
    assert sampler.drain_metrics() == {"seconds_sync": 0.0}
    sampler.release()
    assert events == []
    trained.step()
    torch.testing.assert_close(log_probs(sampler.whole()), log_probs(trained))
    assert sampler.whole().version == trained.gathered == 1
    sampler.release()
    sampler.release()
    assert events == ["made", "ended"]
    sampler.sync()
    assert (events, trained.gathered, sampler.version) == (["made", "ended", "made"], 2, 1)
    torch.testing.assert_close(log_probs(sampler), log_probs(trained))
    sampler.close()
    assert events == ["made", "ended"] * 2
