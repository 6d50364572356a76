"""vLLM samples what the built-in sampler samples: tokens equal, log-probs to 1e-4."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from vllm_engine import assert_as_trainer, make_trainer

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, Learner
from bepa_torchrl.policies.transformers import sampler as sampler_module
from bepa_torchrl.testing import check_renderer, check_sampler, picture
from osworld_gym.types import PromptContext

if TYPE_CHECKING:
    from bepa_torchrl.scale.engine.sampler import VLLMSampler

pytestmark = pytest.mark.vllm
BLOCK = 128  #: at least the tokens of a block of the engine's cache: 16 on a GPU, 128 on a CPU


def prompts_with(engine: VLLMSampler, images: int, count: int = 4) -> list[Prompt]:
    """``count`` prompts of an episode with so many screenshots."""
    if images == 0:
        (prompt,) = prompts_with(engine, 1, 1)
        text = prompt.tokens[prompt.tokens != engine.trainer.renderer.processor.image_token_id]
        return [Prompt(torch.cat((text, text[: 3 + i])), ()) for i in range(count)]
    contexts = [
        PromptContext(
            f"open window {i}",
            [picture(100 * i + number) for number in range(images)],
            [f"Thought: {number}\nAction: wait()" for number in range(images - 1)],
        )
        for i in range(count)
    ]
    return [prompt for prompt in engine.renderer.render(contexts) if prompt is not None]


@pytest.mark.parametrize("images", [0, 1, 2, 6])
@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.0])
def test_tokens_equal_the_built_in_samplers(engine: VLLMSampler, images: int, temperature: float) -> None:
    prompts = prompts_with(engine, images)
    assert {len(prompt.images) for prompt in prompts} == {images}
    keys = [(3, images, row, 0, 0) for row in range(len(prompts))]
    found = engine.sample(prompts, keys, temperature=temperature)
    assert_as_trainer(found, engine.trainer, prompts, keys, temperature=temperature)
    if temperature > 0:
        assert len({tuple(response.tokens.tolist()) for response in found}) > 1


def test_a_choice_that_rounding_decides_is_not_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself: it accepts two tokens at whose boundary the drawn number lies, and no others."""
    trainer = make_trainer()
    prompts = [prompt for prompt in trainer.render([PromptContext("open", [picture(0)])]) if prompt is not None]
    keys, step = [(5, 0)], 3
    drawn = sampler_module.token_uniforms

    def draw(point: float) -> Response:
        uniforms = drawn(keys[0], trainer.sampler.max_new_tokens)
        uniforms[step] = point
        monkeypatch.setattr(sampler_module, "token_uniforms", lambda *_: uniforms)
        (found,) = trainer.sample(prompts, keys)
        return found

    low, high = 0.4, 0.6  # around a boundary, with other tokens between them
    lower, upper = (int(draw(point).tokens[step]) for point in (low, high))
    while high - low > 1e-6:
        middle = (low + high) / 2
        token = int(draw(middle).tokens[step])
        low, high, lower, upper = (middle, high, token, upper) if token < upper else (low, middle, lower, token)
    far_below, below, above = draw(low - 5e-4), draw(low), draw(high)  # the trainer samples the last from here on
    assert [int(each.tokens[step]) for each in (below, above)] == [lower, upper]
    assert_as_trainer([above], trainer, prompts, keys)
    assert_as_trainer([below], trainer, prompts, keys)
    with pytest.raises(AssertionError, match=rf"row 0, token 3: \d+ for {upper}, \d\.\de-0[34] apart"):
        assert_as_trainer([far_below], trainer, prompts, keys)
    other = Response(below.text, below.tokens, below.log_probs + 1e-3)
    with pytest.raises(AssertionError, match="not close"):
        assert_as_trainer([other], trainer, prompts, keys)


def test_it_keeps_the_contract_of_samplers(engine: VLLMSampler) -> None:
    assert isinstance(engine, EngineSampler)
    assert not isinstance(engine, Learner)
    check_renderer(engine.renderer, extends=True)
    check_sampler(engine)


def test_blocked_tokens_are_never_sampled(engine: VLLMSampler) -> None:
    """The image token gets by far the largest logit; sampled, it would break the next forward pass."""
    trainer = engine.trainer
    image = trainer.renderer.processor.image_token_id
    prompts = prompts_with(engine, 1)
    keys = [(5, 0, row, 0, 0) for row in range(len(prompts))]
    with torch.no_grad():
        mean = trainer.model.lm_head.weight.mean(0)
        trainer.model.lm_head.weight[image] = trainer.model.lm_head.weight.abs().max() * mean.sign() * 4
    trainer.version += 1
    engine.sync()
    blocked = set(trainer.sampler.blocked_ids)
    assert image in blocked
    for response in engine.sample(prompts, keys, temperature=4.0):
        assert not blocked & set(response.tokens.tolist())


def test_prompts_of_an_episode_share_the_prefix_cache(engine: VLLMSampler) -> None:
    """Each turn's prompt extends the one before it; only what is new is computed, in whole blocks of the cache."""
    context = PromptContext("count the windows", [picture(70)])
    engine.drain_metrics()
    lengths, computed = [], []
    for step in range(5):
        (prompt,) = engine.renderer.render([context])
        assert prompt is not None
        (response,) = engine.sample([prompt], [(9, 0, 0, 0, step)])
        lengths.append(len(prompt.tokens))
        computed.append((1 - engine.drain_metrics()["engine/prefix_cache_hit_rate"]) * len(prompt.tokens))
        context = replace(
            context,
            screenshots=(*context.screenshots, picture(71 + step)),
            responses=(*context.responses, response.text),
            response_tokens=(*context.response_tokens, tuple(response.tokens.tolist())),
        )
    for step in range(1, 5):  # the first one's text may be in the cache from another test
        new = lengths[step] - lengths[step - 1]
        assert computed[step] <= new + 2 * BLOCK, (lengths, computed)
        assert computed[step] < 0.5 * lengths[step]


def test_a_prompt_longer_than_the_window_gets_no_response(engine: VLLMSampler) -> None:
    long = PromptContext("open " * 3000, [picture(0)])
    short = PromptContext("open", [picture(0)])
    rendered = engine.renderer.render([long, short])
    assert rendered[0] is None
    assert rendered[1] is not None


def test_bad_arguments_are_refused(engine: VLLMSampler) -> None:
    prompts = prompts_with(engine, 1, 2)
    with pytest.raises(ValueError, match="one key per prompt, got 1 keys for 2"):
        engine.sample(prompts, [(1,)])
    with pytest.raises(ValueError, match="temperature must be >= 0"):
        engine.sample(prompts, [(1,), (2,)], temperature=-1.0)
