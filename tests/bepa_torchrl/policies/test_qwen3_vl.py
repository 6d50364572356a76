"""Qwen3-VL as a policy: positions, deepstack features, sampling, shared prefixes, saving, coordinates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers import scorer as scoring
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.testing import check_learner, check_sampler, picture, small_checkpoint
from osworld_gym.types import PromptContext

TEXTS = ("Thought: a\nAction: wait()", "Thought: click mute\nAction: wait()", "Thought: done\nAction: finished()")


def make(**options: object) -> TransformersPolicy:
    return TransformersPolicy(small_checkpoint(family="qwen3_vl"), preset="table", max_new_tokens=6, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    return make()


@pytest.fixture(scope="module")
def rows(policy: TransformersPolicy) -> tuple[list[Prompt], list[Tensor]]:
    """Three steps of one episode with screenshots of two sizes, and another episode's step."""
    screens = [picture(0), picture(1, (192, 112)), picture(2)]
    contexts = [PromptContext("mute", screens[: step + 1], TEXTS[:step]) for step in range(3)]
    contexts.append(PromptContext("mute", [picture(9)]))
    prompts = [prompt for prompt in policy.render(contexts) if prompt is not None]
    return prompts, [policy.encode_response(text) for text in (*TEXTS, TEXTS[0])]


def test_log_probs_equal_the_models_own_forward_pass(
    policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]]
) -> None:
    """transformers' complete model on each row by itself: its positions, its deepstack, its mask."""
    prompts, responses = rows
    with torch.no_grad():
        found, _ = policy.response_log_probs(prompts, responses)
        for prompt, response, log_probs in zip(prompts, responses, found, strict=True):
            whole = Prompt(torch.cat((prompt.tokens, response)), prompt.images)
            logits = policy.model(**policy.renderer.processor.model_inputs([whole])).logits[0, -len(response) - 1 : -1]
            expected = logits.log_softmax(-1).gather(-1, response[:, None]).squeeze(-1)
            torch.testing.assert_close(log_probs, expected, atol=2e-4, rtol=0)


def test_shared_prefixes_have_the_log_probs_and_gradients_of_separate_rows(
    policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored() -> tuple[list[Tensor], list[Tensor]]:
        policy.zero_grad()
        log_probs, _ = policy.response_log_probs(*rows)
        torch.stack([(row * torch.linspace(-1, 1, len(row))).sum() for row in log_probs]).sum().backward()
        return log_probs, [p.grad.clone() for p in policy.parameters() if p.grad is not None]

    shared = scored()
    monkeypatch.setattr(scoring, "find_hosts", lambda sequences, _: list(range(len(sequences))))
    apart = scored()
    assert len(shared[1]) == len(apart[1]) == len(list(policy.parameters()))
    for found, expected in zip(shared[0], apart[0], strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    for found, expected in zip(shared[1], apart[1], strict=True):
        scale = expected.abs().max() + 1e-6
        torch.testing.assert_close(found / scale, expected / scale, atol=1e-3, rtol=0)


def test_recomputed_activations_give_the_same_gradients(rows: tuple[list[Prompt], list[Tensor]]) -> None:
    """Deepstack features enter between layers, of which each is recomputed."""
    gradients = []
    for checkpointing in (False, True):
        policy = make(activation_checkpointing=checkpointing)
        log_probs, _ = policy.response_log_probs(*rows)
        torch.cat(log_probs).sum().backward()
        gradients.append([parameter.grad for parameter in policy.parameters()])
    for found, expected in zip(*gradients, strict=True):
        assert found is not None
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("train_vision", [True, False])
def test_it_keeps_the_contract(train_vision: bool) -> None:
    policy = make(train_vision=train_vision)
    check_sampler(policy)
    check_learner(policy, policy)


def test_greedy_equals_generate(policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]]) -> None:
    """Ragged prompts, whose decoding steps have a mask."""
    prompts = rows[0]
    sampled = policy.sample(prompts, [(i,) for i in range(len(prompts))], temperature=0)
    blocked = [[token] for token in policy.sampler.blocked_ids]
    for prompt, response in zip(prompts, sampled, strict=True):
        inputs = policy.renderer.processor.model_inputs([prompt])
        generated = policy.model.generate(**inputs, max_new_tokens=6, do_sample=False, bad_words_ids=blocked)
        expected = generated[0, len(prompt.tokens) :].tolist()
        assert response.tokens.tolist() == expected[: len(response.tokens)]
        assert len(response.tokens) == 6 or response.tokens[-1] in policy.sampler.end_token_ids


def test_every_deepstack_level_matters(policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]]) -> None:
    prompts, responses = rows
    features = policy.encoder.features([picture(0)])[0]
    assert features.shape == (64, 3 * 96)

    def zeroed(level: int) -> Callable[[list[bytes]], list[Tensor]]:
        def encode(images: list[bytes]) -> list[Tensor]:
            found = [feature.clone() for feature in encoded(images)]
            for feature in found:
                feature[:, 96 * level : 96 * (level + 1)] = 0
            return found

        return encode

    encoded = policy.encoder._encode
    with torch.no_grad():
        (whole,), _ = policy.response_log_probs(prompts[:1], responses[:1])
        for level in range(3):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(policy.encoder, "_encode", zeroed(level))
                (without,), _ = policy.response_log_probs(prompts[:1], responses[:1])
            assert (whole - without).abs().max() > 1e-3


def test_round_trip(policy: TransformersPolicy, rows: tuple[list[Prompt], list[Tensor]], tmp_path: Path) -> None:
    loaded = load_policy(policy.save(tmp_path / "saved"), preset="table")
    with torch.no_grad():
        expected, found = (each.response_log_probs(*rows)[0] for each in (policy, loaded))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_points_are_thousandths_of_the_screen(policy: TransformersPolicy) -> None:
    scaling = policy.image_scaling
    assert scaling.to_screen((500, 250), (1920, 1080)) == (960, 270)
    assert scaling.to_model((960, 270), (1920, 1080)) == (500, 250)
    assert scaling.model_size((128, 128)) == (128, 128)
