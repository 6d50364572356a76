"""LoRA adapters that vLLM gets alone: a new id per version, verified by the probe, and given again after an exit."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm_engine import OPTIONS, assert_as_trainer, change, make_trainer

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.scale.engine.errors import WeightSyncError
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.types import PromptContext

if TYPE_CHECKING:
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

pytestmark = pytest.mark.vllm
LORA = Lora(rank=4, alpha=8)


def started(trainer: TransformersPolicy) -> VLLMSampler:
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

    policy = VLLMSampler(trainer, kv_cache_gb=0.25, max_rows=16, adapters="separate")
    policy.sync()
    return policy


@pytest.fixture(scope="module")
def adapted() -> Iterator[VLLMSampler]:
    """An engine of a trainer with adapters; the tests go on with its weights."""
    policy = started(make_trainer(lora=LORA))
    yield policy
    policy.close()


def rows(policy: VLLMSampler, count: int = 4) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    contexts = [PromptContext(f"open {i}", [picture(i), picture(50 + i)], ["Action: wait()"]) for i in range(count)]
    prompts = [prompt for prompt in policy.renderer.render(contexts) if prompt is not None]
    return prompts, [(11, 0, i, 0, 0) for i in range(count)]


def sampled_as_trainer(policy: VLLMSampler) -> list[Response]:
    """The engine's responses, after a comparison with the trainer's."""
    prompts, keys = rows(policy)
    found = policy.sample(prompts, keys)
    assert_as_trainer(found, policy.trainer, prompts, keys)
    return found


def loaded(policy: VLLMSampler) -> set[int]:
    """Ids of the adapters that vLLM has."""
    engine: Any = policy.engine
    return set(engine._call(engine._llm.list_loras(), 60.0))


def test_each_sync_sends_adapters_alone_under_a_new_id(adapted: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = adapted.engine
    monkeypatch.setattr(engine, "reload", lambda _: pytest.fail("the engine has the weights below the adapters"))
    before, first = sampled_as_trainer(adapted), engine.adapter_id
    for step in (1, 2):
        change(adapted.trainer, "lora_")
        adapted.sync()  # verified by the probe: log-probs changed, and are the trainer's
        assert adapted.version == adapted.trainer.version
        assert engine.adapter_id == first + step
        assert loaded(adapted) == {engine.adapter_id}
        found = sampled_as_trainer(adapted)  # the prompts' blocks of the last version are in the prefix cache
        assert any(not torch.equal(a.log_probs, b.log_probs) for a, b in zip(before, found, strict=True))
        before = found
    again = adapted.drain_metrics()
    assert 0 < again["engine/probe_error_max"] < 1e-4
    sampled_as_trainer(adapted)
    assert adapted.drain_metrics()["engine/prefix_cache_hit_rate"] > 0.5  # the cache works within a version


def test_s4_an_id_that_is_used_again_keeps_the_old_adapters_and_is_noticed(
    adapted: VLLMSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = adapted.engine

    async def nothing() -> None:
        pass

    monkeypatch.setattr(engine, "_remove_adapters", nothing)
    monkeypatch.setattr(engine, "_adapter_ids", itertools.repeat(engine.adapter_id))
    change(adapted.trainer, "lora_")
    with pytest.raises(WeightSyncError, match="differ from the trainer's"):
        adapted.sync()
    monkeypatch.undo()
    change(adapted.trainer, "lora_")
    adapted.sync()
    sampled_as_trainer(adapted)


def test_other_weights_below_the_adapters_are_sent_too(adapted: VLLMSampler) -> None:
    """As after loading a policy's weights: they replace those of the checkpoint, and adapters become the identity."""
    weights = {name: weight * 1.02 for name, weight in adapted.trainer.named_weights()}
    adapted.trainer.load_weights(weights.items(), version=adapted.trainer.version + 1)
    adapted.sync()
    sampled_as_trainer(adapted)
    change(adapted.trainer, "lora_")
    adapted.load_weights(adapted.trainer.named_weights(), version=adapted.trainer.version)  # merged
    assert loaded(adapted) == set()
    sampled_as_trainer(adapted)
    adapted.load_and_verify()
    assert len(loaded(adapted)) == 1
    sampled_as_trainer(adapted)


def test_a_killed_engine_gets_the_current_adapters_again(adapted: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    change(adapted.trainer, "lora_")
    adapted.sync()
    adapted.drain_metrics()
    engine: Any = adapted.engine
    number, generate, (process,) = engine.adapter_id, engine.generate, engine.process_ids

    def killed_while_sampling(requests: Any) -> Any:
        monkeypatch.undo()
        os.kill(process, signal.SIGKILL)
        return generate(requests)

    monkeypatch.setattr(engine, "generate", killed_while_sampling)
    sampled_as_trainer(adapted)
    assert adapted.drain_metrics()["engine/restarts"] == 1
    assert engine.process_ids != [process]
    assert engine.adapter_id > number
    assert loaded(adapted) == {engine.adapter_id}
    change(adapted.trainer, "lora_")
    adapted.sync()
    sampled_as_trainer(adapted)


def test_adapters_that_vllm_refuses_are_an_error(adapted: VLLMSampler, tmp_path: Path) -> None:
    with pytest.raises(WeightSyncError, match=r"the engine did not load .*missing"):
        adapted.engine.use_adapter(tmp_path / "missing")
    adapted.load_and_verify()
    sampled_as_trainer(adapted)


def test_qwen3_vl() -> None:
    trainer = TransformersPolicy(small_checkpoint(family="qwen3_vl"), **OPTIONS, lora=LORA)
    policy = started(trainer)
    try:
        change(trainer, "lora_", by=0.05)
        policy.sync()
        sampled_as_trainer(policy)
        assert policy.drain_metrics()["engine/probe_error_max"] < 1e-4
    finally:
        policy.close()
