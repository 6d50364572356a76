"""The small policies that the tests of the vLLM policy train, and the comparison of an engine's responses to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers import sampler as sampler_module
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import small_checkpoint

OPTIONS: dict[str, Any] = {"preset": "paper", "history": "all", "max_prompt_tokens": 2048, "max_new_tokens": 16}


def make_trainer(*, tied: bool = True, **options: Any) -> TransformersPolicy:
    """A built-in policy with small random weights; equal arguments give equal weights."""
    checkpoint = small_checkpoint()
    assert checkpoint.model.config.tie_word_embeddings
    if not tied:
        head = checkpoint.model.lm_head
        head.weight = torch.nn.Parameter(head.weight.detach().clone() * 0.9 + 0.02)
        checkpoint.model.config.tie_word_embeddings = False
        checkpoint.model.config.text_config.tie_word_embeddings = False
    return TransformersPolicy(checkpoint, **(OPTIONS | options))


def change(trainer: TransformersPolicy, part: str = "", *, by: float = 0.02) -> None:
    """Adds noise to the weights whose name contains ``part``, as an optimiser step would, and counts a step."""
    generator = torch.Generator().manual_seed(trainer.version + 1)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if part in name:
                weight.add_(by * torch.randn(weight.shape, generator=generator))
    trainer.encoder.forget()
    trainer.version += 1


def assert_as_trainer(
    found: Sequence[Response],
    trainer: TransformersPolicy,
    prompts: Sequence[Prompt],
    keys: Sequence[tuple[int, ...]],
    *,
    temperature: float = 1.0,
) -> None:
    """An engine's responses are those of the built-in sampler with the trainer's weights: tokens, text and log-probs.

    Both sample by inverse CDF, and their logits differ by rounding: a drawn number so close to the boundary of two
    tokens' intervals that rounding decides may select either. There the drawn number must be within 1e-5 of the
    boundary (at temperature 0: the tokens' logits within 1e-4), and the row is compared up to it.
    """
    expected = trainer.sample(prompts, keys, temperature=temperature)
    for row, (mine, other) in enumerate(zip(found, expected, strict=True)):
        same = len(other.tokens)
        if mine.tokens.tolist() == other.tokens.tolist():
            assert mine.text == other.text
        else:
            pairs = enumerate(zip(mine.tokens.tolist(), other.tokens.tolist(), strict=False))
            same, tokens = next(((i, pair) for i, pair in pairs if pair[0] != pair[1]), (0, None))
            assert tokens is not None, f"row {row}: one response is the beginning of the other"
            distance = _distance_to_boundary(trainer, prompts[row], keys[row], temperature, same, tokens)
            limit = 1e-4 if temperature == 0 else 1e-5
            assert distance < limit, f"row {row}, token {same}: {tokens[0]} for {tokens[1]}, {distance:.1e} apart"
        torch.testing.assert_close(mine.log_probs[:same], other.log_probs[:same], atol=1e-4, rtol=0)


def _distance_to_boundary(
    trainer: TransformersPolicy,
    prompt: Prompt,
    key: tuple[int, ...],
    temperature: float,
    step: int,
    tokens: tuple[int, int],
) -> float:
    """How far the number drawn at ``step`` is from leaving the choice between two tokens to rounding."""
    draws: list[tuple[torch.Tensor, float]] = []
    choose = sampler_module.choose_tokens

    def recorded(
        logits: torch.Tensor, uniforms: torch.Tensor, heat: float, blocked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        draws.append((logits[0].float().index_fill(-1, blocked, -torch.inf), float(uniforms[0])))
        return choose(logits, uniforms, heat, blocked)

    with patch.object(sampler_module, "choose_tokens", recorded):
        trainer.sample([prompt], [key], temperature=temperature)
    logits, uniform = draws[step]
    if temperature == 0:
        return float((logits[tokens[0]] - logits[tokens[1]]).abs())
    cdf = torch.softmax(logits / temperature, -1).double().cumsum(-1)
    between = cdf[min(tokens) : max(tokens)]  # the boundaries that separate them
    return float((between - uniform).abs().max())
