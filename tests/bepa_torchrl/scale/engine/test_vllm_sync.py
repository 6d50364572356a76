"""Weight syncs: verified by a probe, and each silent fault of the past (S1 to S4) is caught by it.

S1 pixels normalised twice, S2 a stale tied head, S3 caches of the old weights, S4 stale adapters.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from vllm_engine import assert_as_trainer, change, make_trainer

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.testing import picture
from osworld_gym.types import PromptContext

if TYPE_CHECKING:
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

pytestmark = pytest.mark.vllm


def rows(policy: VLLMSampler, count: int = 4) -> tuple[list[Prompt], list[tuple[int, ...]]]:
    contexts = [PromptContext(f"open {i}", [picture(i), picture(50 + i)], ["Action: wait()"]) for i in range(count)]
    prompts = [prompt for prompt in policy.renderer.render(contexts) if prompt is not None]
    return prompts, [(11, 0, i, 0, 0) for i in range(count)]


def test_after_each_sync_the_engine_samples_with_the_new_weights(engine: VLLMSampler) -> None:
    prompts, keys = rows(engine)
    before = engine.sample(prompts, keys)
    for _ in range(3):
        change(engine.trainer)
        engine.sync()
        assert engine.version == engine.trainer.version
        found = engine.sample(prompts, keys)
        assert_as_trainer(found, engine.trainer, prompts, keys)
        assert any(not torch.equal(a.log_probs, b.log_probs) for a, b in zip(before, found, strict=True))
        before = found
    metrics = engine.drain_metrics()
    assert 0 < metrics["engine/probe_error_max"] < 1e-4
    assert metrics["engine/sync_seconds"] > 0


def test_the_same_version_is_not_sent_again(engine: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "load_weights", lambda *_, **__: pytest.fail("the engine has this version"))
    engine.sync()


def test_s2_a_tied_head_that_is_not_sent_stays_old_and_is_noticed(
    engine: VLLMSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bepa_torchrl.scale.engine.weight_sync import engine_weights as module

    complete = module.complete_weights

    def without_head(*args: Any) -> dict[str, torch.Tensor]:
        return {name: weight for name, weight in complete(*args).items() if name != "lm_head.weight"}

    monkeypatch.setattr(module, "complete_weights", without_head)
    change(engine.trainer, "embed_tokens", by=0.05)
    with pytest.raises(WeightSyncError, match="differ from the trainer's"):
        engine.sync()
    monkeypatch.undo()
    change(engine.trainer, "embed_tokens", by=0.05)
    engine.sync()


def test_s3_a_prefix_cache_of_the_old_weights_is_noticed(engine: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = engine.engine

    async def without_prefix_cache() -> None:
        await inner._llm.reset_mm_cache()
        await inner._llm.reset_encoder_cache()

    change(engine.trainer)
    engine.sync()  # its probe fills the cache
    monkeypatch.setattr(inner, "_reset_caches", without_prefix_cache)
    change(engine.trainer, by=0.05)
    with pytest.raises(WeightSyncError, match="differ from the trainer's"):
        engine.sync()


def test_a_reload_that_does_nothing_is_noticed(engine: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.engine, "reload", lambda _: None)
    change(engine.trainer, by=1e-5)  # less than the tolerance on most log-probs
    with pytest.raises(WeightSyncError, match=r"did not change the engine's log-probs|differ from the trainer's"):
        engine.sync()


def test_s4_adapters_are_sent_merged_so_that_none_is_stale(engine: VLLMSampler) -> None:
    """The engine has no adapter of its own whose id could name older weights; two versions in a row."""
    adapted = make_trainer(lora=Lora(rank=4, alpha=8, targets=("q_proj", "v_proj", "down_proj"), adapter=None))
    adapted.version = engine.trainer.version + 1
    engine.trainer = adapted
    prompts, keys = rows(engine)
    for _ in range(2):
        change(adapted, "lora_")  # larger steps: rounding alone exceeds the tolerance
        engine.sync()
        assert_as_trainer(engine.sample(prompts, keys), adapted, prompts, keys)


def test_incomplete_weights_leave_the_engine_as_it_was(engine: VLLMSampler) -> None:
    prompts, keys = rows(engine)
    version = engine.version
    weights = dict(engine.trainer.named_weights())
    del weights["model.visual.merger.ln_q.weight"]
    with pytest.raises(ValueError, match=r"1 weights are missing, such as model\.visual\.merger\.ln_q\.weight"):
        engine.load_weights(weights.items(), version=version + 1)
    assert engine.version == version
    assert_as_trainer(engine.sample(prompts, keys), engine.trainer, prompts, keys)


def test_a_sync_that_takes_too_long_is_an_error(engine: VLLMSampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.engine, "stall_timeout", 1e-4)
    change(engine.trainer)
    with pytest.raises(WeightSyncError, match=r"did not load .* in 0\.0001 s"):
        engine.sync()


def test_an_engine_that_is_killed_is_started_again_and_its_turns_are_retried(
    engine: VLLMSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(engine.trainer)  # it must start with these weights, not with the first ones
    engine.sync()
    engine.drain_metrics()
    prompts, keys = rows(engine, 6)
    (process,) = engine.engine.process_ids
    generate = engine.engine.generate

    workers = psutil.Process(process).children(recursive=True)

    def killed_while_sampling(requests: Any) -> Any:
        monkeypatch.undo()
        os.kill(process, signal.SIGKILL)
        return generate(requests)

    monkeypatch.setattr(engine.engine, "generate", killed_while_sampling)
    assert_as_trainer(engine.sample(prompts, keys), engine.trainer, prompts, keys)
    metrics = engine.drain_metrics()
    assert metrics["engine/restarts"] == 1
    assert 1 <= metrics["engine/turns_retried"] <= 6
    assert engine.engine.process_ids != [process]
    assert not psutil.wait_procs(workers, timeout=10)[1], "processes of the killed engine are left"
    monkeypatch.setattr(engine, "max_restarts", engine.restarts)
    with pytest.raises(EngineError, match=rf"restarted {engine.restarts} times \(max_restarts\)"):
        engine._restart(_exited())
    engine.weights.start()  # for the tests that follow


def test_the_sockets_of_a_killed_engine_are_closed_before_it_is_dropped(engine: VLLMSampler) -> None:
    """An open one would block whichever thread collects the client as garbage, for ever."""
    change(engine.trainer)
    engine.sync()
    client, (process,) = engine.engine._llm.engine_core, engine.engine.process_ids
    engine.sample(*rows(engine))
    os.kill(process, signal.SIGKILL)
    engine.engine.stop()  # at once: vLLM has not noticed
    resources = client.resources
    assert resources.input_socket.closed
    assert resources.output_socket.closed
    assert resources.ctx.closed
    engine.weights.start()  # for the tests that follow


def test_threads_sample_at_once_and_one_of_them_starts_a_killed_engine_again(
    engine: VLLMSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "max_restarts", engine.restarts + 1)
    engine.sync()
    engine.drain_metrics()
    prompts, keys = rows(engine, 12)
    (process,) = engine.engine.process_ids
    turns = threading.Semaphore(0)

    def turn(number: int) -> Response:
        (found,) = engine.sample([prompts[number]], [keys[number]])
        turns.release()
        return found

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(turn, number) for number in range(len(prompts))]
        assert turns.acquire(timeout=120.0)
        os.kill(process, signal.SIGKILL)
        found = [each.result(300.0) for each in running]
    assert_as_trainer(found, engine.trainer, prompts, keys)
    assert engine.drain_metrics()["engine/restarts"] == 1


def _exited() -> Any:
    from bepa_torchrl.scale.engine.engine import EngineExited

    return EngineExited("vLLM's engine exited: by the test", {})


@pytest.fixture
def other_engine(request: pytest.FixtureRequest) -> Iterator[VLLMSampler]:
    """A further engine, not started; its argument: (tied, arguments of vLLM)."""
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

    tied, arguments = request.param
    policy = VLLMSampler(make_trainer(tied=tied), kv_cache_gb=0.25, max_rows=8, arguments=arguments)
    yield policy
    policy.close()


@pytest.mark.parametrize("other_engine", [(False, {})], indirect=True)
def test_an_untied_head_is_updated(other_engine: VLLMSampler) -> None:
    prompts, keys = rows(other_engine)
    assert_as_trainer(other_engine.sample(prompts, keys), other_engine.trainer, prompts, keys)
    change(other_engine.trainer, "lm_head")
    other_engine.sync()
    assert_as_trainer(other_engine.sample(prompts, keys), other_engine.trainer, prompts, keys)


@pytest.mark.parametrize("other_engine", [(True, {"mm_device_do_normalize": True})], indirect=True)
def test_s1_pixels_that_are_normalised_twice_are_noticed(other_engine: VLLMSampler) -> None:
    with pytest.raises(WeightSyncError, match=r"text \d\.\de-0[5-9] \(KL [^)]*\), one image \d\.\de\+00"):
        other_engine.sync()
