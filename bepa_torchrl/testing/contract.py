"""Checks that a renderer, a sampler and a learner keep what :mod:`bepa_torchrl.policies.base` requires of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import Learner, PromptRenderer, Renderer, Sampler
from bepa_torchrl.testing.small_model import picture
from osworld_gym.types import PromptContext
from osworld_gym.uitars.coords import ImageScaling

Key = tuple[int, ...]
_TEXT = "Thought: open the trash\nAction: wait()"


def check_renderer(
    renderer: PromptRenderer, contexts: Sequence[PromptContext] | None = None, *, extends: bool = False
) -> None:
    """Checks a renderer; one that has only ``render`` is checked for that alone.

    Args:
        renderer: the renderer.
        contexts: at least two different ones that fit the model; by default two short ones with small images.
        extends: whether a prompt has the whole history, so that it must begin with the prompt and response of the step
            before, token for token, also where the response's text has another tokenisation; requires the whole
            :class:`Renderer`.

    Raises:
        AssertionError: a check failed; the message states what was expected and what was found.
        ValueError: fewer than two contexts.
    """
    contexts = _contexts(contexts)
    prompts = _check_render(renderer, contexts)
    assert renderer.render([]) == [], "render([]) should return an empty list"
    same = len(prompts[0].tokens) == len(prompts[1].tokens) and torch.equal(prompts[0].tokens, prompts[1].tokens)
    assert not same or prompts[0].images != prompts[1].images, "two different contexts gave the same prompt"
    if isinstance(renderer, Renderer):
        _check_text(renderer)
        assert isinstance(renderer.image_scaling, ImageScaling), "image_scaling should be an ImageScaling"
    if extends:
        assert isinstance(renderer, Renderer), "extends=True requires a renderer with encode_response"
        _check_extension(renderer, contexts)


def check_sampler(
    sampler: Sampler,
    contexts: Sequence[PromptContext] | None = None,
    *,
    stochastic: bool = True,
    tolerance: float = 1e-4,
) -> None:
    """Checks a sampler on the prompts of its renderer. No weights are loaded.

    Args:
        sampler: the sampler.
        contexts: as of :func:`check_renderer`.
        stochastic: False for a scripted sampler, whose responses do not vary with the keys.
        tolerance: maximum difference of log-probs of the same row in other batches, in nats: 1e-4 suits float32, 5e-2
            bfloat16.

    Raises:
        AssertionError: a check failed; the message states what was expected and what was found.
        ValueError: fewer than two contexts.
    """
    prompts = _check_render(sampler.renderer, _contexts(contexts))
    keys = _keys(prompts)
    responses = sampler.sample(prompts, keys)
    _check_responses(responses, len(prompts))
    _check_keys(sampler, prompts, keys, responses, tolerance)
    if stochastic:
        _check_randomness(sampler, prompts[0])
    _check_greedy(sampler, prompts)
    assert sampler.sample([], []) == [], "sample([], []) should return an empty list"
    assert isinstance(sampler.version, int), f"version is {sampler.version!r}, expected an int"


def check_learner(
    learner: Learner,
    sampler: Sampler,
    contexts: Sequence[PromptContext] | None = None,
    *,
    tolerance: float = 1e-4,
) -> None:
    """Checks that a learner scores what a sampler with its weights samples, and that its weights can be loaded there.

    The weights of both are unchanged afterwards.

    Args:
        learner: the learner.
        sampler: has the learner's weights, and may be the same object.
        contexts: as of :func:`check_renderer`.
        tolerance: maximum difference of log-probs when sampled and when scored, in nats: 1e-4 suits float32, 5e-2
            bfloat16.

    Raises:
        AssertionError: a check failed; the message states what was expected and what was found.
        ValueError: fewer than two contexts.
    """
    prompts = _check_render(sampler.renderer, _contexts(contexts))
    keys = _keys(prompts)
    responses = sampler.sample(prompts, keys)
    _check_scores(learner, prompts, responses, tolerance)
    assert list(learner.parameters()), "parameters() should return the trained parameters, got none"
    _check_weights(learner, sampler, prompts, keys, responses)


def _contexts(given: Sequence[PromptContext] | None) -> Sequence[PromptContext]:
    contexts = [PromptContext(f"open window {i}", [picture(i)]) for i in range(2)] if given is None else given
    if len(contexts) < 2:
        raise ValueError(f"expected at least two contexts, got {len(contexts)}")
    return contexts


def _keys(prompts: Sequence[Prompt]) -> list[Key]:
    return [(7, 0, number, 0, 0) for number in range(len(prompts))]


def _check_render(renderer: PromptRenderer, contexts: Sequence[PromptContext]) -> list[Prompt]:
    rendered, again = renderer.render(contexts), renderer.render(contexts)
    assert len(rendered) == len(contexts), f"render returned {len(rendered)} prompts for {len(contexts)} contexts"
    prompts = [prompt for prompt in rendered if prompt is not None]
    assert len(prompts) == len(contexts), "a context does not fit the model; pass shorter contexts to this check"
    for prompt, other in zip(prompts, again, strict=True):
        assert prompt.tokens.dtype == torch.int64, f"prompt tokens are {prompt.tokens.dtype}, expected int64"
        assert prompt.tokens.ndim == 1, f"prompt tokens have shape {list(prompt.tokens.shape)}, expected [P]"
        assert other is not None, "render returned a prompt the first time and None the second time"
        assert torch.equal(prompt.tokens, other.tokens), "equal contexts gave different prompts"
        assert all(isinstance(image, bytes) for image in prompt.images), "prompt.images should hold PNG bytes"
    return prompts


def _check_responses(responses: Sequence[Response], count: int) -> None:
    assert len(responses) == count, f"sample returned {len(responses)} responses for {count} prompts"
    for response in responses:
        tokens, log_probs = response.tokens, response.log_probs
        assert isinstance(response.text, str), f"the text is a {type(response.text).__name__}, expected str"
        assert tokens.dtype == torch.int64, f"response tokens are {tokens.dtype}, expected int64"
        assert log_probs.dtype == torch.float32, f"log-probs are {log_probs.dtype}, expected float32"
        assert tokens.ndim == 1, f"response tokens have shape {list(tokens.shape)}, expected [L]"
        assert len(tokens) > 0, "a response has no token"
        assert tokens.shape == log_probs.shape, (
            f"{list(log_probs.shape)} log-probs for {list(tokens.shape)} tokens; expected one per token"
        )
        assert bool((log_probs <= 1e-6).all()), "a log-prob is above 0 or NaN; expected log-probabilities in nats"


def _check_keys(
    sampler: Sampler,
    prompts: Sequence[Prompt],
    keys: Sequence[Key],
    responses: Sequence[Response],
    tolerance: float,
) -> None:
    """A row's response depends on its prompt and key only, not on the batch."""
    alone = [sampler.sample([prompt], [key])[0] for prompt, key in zip(prompts, keys, strict=True)]
    turned = sampler.sample(prompts[::-1], keys[::-1])[::-1]
    for kind, others in (("sampled alone", alone), ("sampled in another order", turned)):
        for response, other in zip(responses, others, strict=True):
            assert torch.equal(response.tokens, other.tokens), (
                f"{kind}, a row with the same prompt and key returned other tokens; draws should depend on keys[i] only"
            )
            apart = (response.log_probs - other.log_probs).abs().max().item()
            assert apart <= tolerance, f"{kind}, log-probs of the same tokens differ by {apart:.1e} > {tolerance:g}"


def _check_randomness(sampler: Sampler, prompt: Prompt) -> None:
    drawn = sampler.sample([prompt] * 8, [(7, 1, number, 0, 0) for number in range(8)])
    different = {tuple(response.tokens.tolist()) for response in drawn}
    assert len(different) > 1, "eight keys gave the same response eight times; draws should depend on the key"


def _check_greedy(sampler: Sampler, prompts: Sequence[Prompt]) -> None:
    one, other = (
        sampler.sample(prompts, [(s, 0, i, 0, 0) for i in range(len(prompts))], temperature=0) for s in (1, 2)
    )
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.tokens, b.tokens), "temperature=0 should take the most likely tokens, whatever the key"


def _check_text(renderer: Renderer) -> None:
    tokens = renderer.encode_response(_TEXT)
    assert tokens.dtype == torch.int64, f"encode_response returned {tokens.dtype}, expected int64"
    assert tokens.ndim == 1, f"encode_response returned shape {list(tokens.shape)}, expected [L]"
    assert len(tokens) > 1, f"encode_response returned {len(tokens)} tokens for a text; expected its tokens and an end"
    (text,) = renderer.decode_responses([tokens.tolist()])
    assert text == _TEXT, f"a text that is encoded and decoded again is {text!r}, expected {_TEXT!r}"
    assert renderer.decode_responses([]) == [], "decode_responses([]) should return an empty list"


def _check_extension(renderer: Renderer, contexts: Sequence[PromptContext], *, steps: int = 3) -> None:
    """Adds ``steps`` steps to each context, whose responses have a token per character instead of the usual ones."""
    end = renderer.encode_response(_TEXT)[-1:]
    tokens = torch.cat([*(renderer.encode_response(character)[:-1] for character in _TEXT), end])
    (text,) = renderer.decode_responses([tokens.tolist()])
    for context in contexts:
        (prompt,) = _check_render(renderer, [context])
        for step in range(steps):
            context = replace(
                context,
                screenshots=(*context.screenshots, picture(1000 + step)),
                responses=(*context.responses, text),
                response_tokens=(*context.response_tokens, tuple(tokens.tolist())),
            )
            before, (prompt,) = torch.cat((prompt.tokens, tokens)), _check_render(renderer, [context])
            assert torch.equal(prompt.tokens[: len(before)], before), (
                f"the prompt of step {step + 1} does not begin with the tokens of the prompt and response before it; "
                "insert past responses as context.response_tokens"
            )


def _check_scores(learner: Learner, prompts: Sequence[Prompt], responses: Sequence[Response], tolerance: float) -> None:
    with torch.no_grad():
        scored, entropies = learner.response_log_probs(prompts, [response.tokens for response in responses])
    for response, log_probs, entropy in zip(responses, scored, entropies, strict=True):
        assert log_probs.shape == entropy.shape == response.tokens.shape, (
            f"response_log_probs returned shapes {list(log_probs.shape)} and {list(entropy.shape)} "
            f"for {len(response.tokens)} tokens"
        )
        apart = (log_probs.cpu() - response.log_probs.cpu()).abs().max().item()
        assert apart <= tolerance, f"log-probs when sampled and when scored differ by {apart:.1e} > {tolerance:g}"


def _check_weights(
    learner: Learner,
    sampler: Sampler,
    prompts: Sequence[Prompt],
    keys: Sequence[Key],
    responses: Sequence[Response],
) -> None:
    """Loading takes effect, fails without changes, and restores the first weights."""
    version = sampler.version
    first = {name: weight.clone() for name, weight in learner.named_weights()}
    try:
        sampler.load_weights([*first.items(), ("no.such.weight", torch.zeros(1))], version=version + 1)
    except ValueError:
        pass
    else:
        raise AssertionError("load_weights took a weight that the model does not have; expected ValueError")
    assert sampler.version == version, "a refused load_weights changed the version"
    sampler.load_weights(((name, weight * 0.5) for name, weight in first.items()), version=version + 1)
    assert sampler.version == version + 1, f"load_weights(version={version + 1}) left version {sampler.version}"
    halved = sampler.sample(prompts, keys)
    sampler.load_weights(first.items(), version=version)
    changed = [
        not torch.equal(a.tokens, b.tokens) or bool(((a.log_probs - b.log_probs).abs() > 1e-3).any())
        for a, b in zip(responses, halved, strict=True)
    ]
    assert any(changed), "after load_weights of halved weights the log-probs are the same: old weights or a cache"
    back = sampler.sample(prompts, keys)
    for response, other in zip(responses, back, strict=True):
        assert torch.equal(response.tokens, other.tokens), "with the first weights loaded again the tokens differ"
