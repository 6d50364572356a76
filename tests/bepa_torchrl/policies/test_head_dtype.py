"""``policy.head_dtype=float32``: logits of half-precision weights that are not rounded to half precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from history_rows import required
from packaging.version import Version

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.policies.transformers import sampler, scorer
from bepa_torchrl.policies.transformers.chunked_log_probs import chunked_log_probs
from bepa_torchrl.policies.transformers.policy import TransformersPolicy, load_policy
from bepa_torchrl.policies.transformers.sampler import output_head
from bepa_torchrl.scale.engine.arguments import check_head
from bepa_torchrl.scale.engine.errors import EngineVersionError
from bepa_torchrl.scale.engine.sampler import engine_spec
from bepa_torchrl.testing import picture, small_checkpoint
from osworld_gym.types import PromptContext


def large_logits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states ``[64, 32]`` and a weight ``[100, 32]`` in bfloat16 with logits up to about 30, and tokens."""
    generator = torch.Generator().manual_seed(0)
    hidden = (2.0 * torch.randn(64, 32, generator=generator)).bfloat16()
    weight = torch.randn(100, 32, generator=generator).bfloat16()
    return hidden, weight, torch.randint(0, 100, (64,), generator=generator)


def exact(hidden: torch.Tensor, weight: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs in float64."""
    return (hidden.double() @ weight.double().T).log_softmax(-1).gather(-1, tokens[:, None]).squeeze(-1)


def test_log_probs_are_exact_and_without_it_rounded() -> None:
    hidden, weight, tokens = large_logits()
    rounded, _ = chunked_log_probs(hidden, weight, tokens, chunk=16)
    precise, _ = chunked_log_probs(hidden, weight, tokens, chunk=16, dtype=torch.float32)
    right = exact(hidden, weight, tokens)
    assert (rounded - right).abs().mean() > 0.005
    torch.testing.assert_close(precise.double(), right, atol=2e-5, rtol=0)


def test_the_weights_gradient_is_summed_in_float32() -> None:
    """Into a gradient that is kept in float32, as an optimiser with float32 masters has it; else it is rounded once."""
    hidden, weight, tokens = large_logits()
    hidden, leaf = hidden.requires_grad_(), weight.clone().requires_grad_()
    leaf.grad_dtype = torch.float32
    chunked_log_probs(hidden, leaf, tokens, chunk=16, dtype=torch.float32)[0].sum().backward()
    wide_hidden, wide = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    exact(wide_hidden, wide, tokens).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == torch.float32
    torch.testing.assert_close(leaf.grad.double(), wide.grad, atol=1e-4, rtol=1e-5)
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16
    torch.testing.assert_close(hidden.grad.double(), wide_hidden.grad, atol=1e-2, rtol=1e-2)
    plain = weight.clone().requires_grad_()
    chunked_log_probs(hidden.detach(), plain, tokens, chunk=16, dtype=torch.float32)[0].sum().backward()
    assert plain.grad is not None
    assert plain.grad.dtype == torch.bfloat16
    torch.testing.assert_close(plain.grad, leaf.grad.bfloat16())


def test_a_float32_policy_is_the_same_to_the_last_bit() -> None:
    hidden, weight, tokens = (tensor.float() if tensor.is_floating_point() else tensor for tensor in large_logits())
    found = [chunked_log_probs(hidden, weight, tokens, chunk=16, dtype=dtype)[0] for dtype in (None, torch.float32)]
    assert torch.equal(*found)
    head = torch.nn.Linear(4, 5, bias=False)
    model = torch.nn.Module()
    model.lm_head = head
    assert output_head(model, torch.float32) is head


def two_heads(folder: Path) -> tuple[TransformersPolicy, TransformersPolicy, list[Prompt]]:
    """A policy in bfloat16 with the model's head and one with float32, responses of two tokens, and 16 prompts."""
    saved = TransformersPolicy(small_checkpoint(), preset="compact").save(folder)
    options = {"dtype": "bfloat16", "preset": "compact", "max_new_tokens": 2}
    plain, precise = (load_policy(saved, head_dtype=head, **options) for head in ("model", "float32"))
    return plain, precise, required(plain.render([PromptContext(f"open {i}", [picture(i)]) for i in range(16)]))


def check_rounding(plain: list[torch.Tensor], precise: list[torch.Tensor]) -> None:
    """Differences to the exact log-probs of the same hidden states: those of the logits' rounding, or none.

    Hidden states themselves are not compared: in bfloat16 those of a prompt differ with the number of rows and tokens
    that are computed at once, by more than the head does on some processors.
    """
    assert torch.cat(plain).abs().mean() > 1e-3
    assert torch.cat(precise).abs().max() < 1e-4


def test_the_sampler_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the prompt's forward pass and in those of the tokens after it."""
    *policies, prompts = two_heads(tmp_path / "policy")
    seen: list[torch.Tensor] = []

    def recorded(model: Any, dtype: torch.dtype | None) -> Callable[[torch.Tensor], torch.Tensor]:
        head = output_head(model, dtype)
        return lambda hidden: seen.append(hidden) or head(hidden)

    monkeypatch.setattr(sampler, "output_head", recorded)
    differences: list[list[torch.Tensor]] = []
    for policy in policies:
        seen.clear()
        rows = policy.sample(prompts, [(1, i) for i in range(len(prompts))])
        first, second = (hidden.reshape(len(prompts), -1) for hidden in seen)  # of the first and the second token
        differences.append([])
        for i, row in enumerate(rows):
            hidden = torch.stack([first[i], second[i]])[: len(row.tokens)]
            right = exact(hidden, policy.model.lm_head.weight.detach(), row.tokens)
            differences[-1].append(row.log_probs.double() - right)
    check_rounding(*differences)


def test_the_scorer_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *policies, prompts = two_heads(tmp_path / "policy")
    hidden_states, seen = scorer.hidden_states, []

    def recorded(*given: Any, **options: Any) -> torch.Tensor:
        seen.append(hidden_states(*given, **options))
        return seen[-1]

    monkeypatch.setattr(scorer, "hidden_states", recorded)
    differences: list[list[torch.Tensor]] = []
    token = torch.tensor([70])  # a word
    for policy in policies:
        differences.append([])
        for prompt in prompts:
            with torch.no_grad():
                found = policy.response_log_probs([prompt], [token])[0][0]
                right = exact(seen[-1].flatten(0, 1)[len(prompt.tokens) - 1][None], policy.model.lm_head.weight, token)
            differences[-1].append(found.double() - right)
    check_rounding(*differences)


def test_an_engine_has_it(tmp_path: Path) -> None:
    *policies, _ = two_heads(tmp_path / "policy")
    heads = [engine_spec(p, kv_cache_gb=1.0, max_rows=1, adapters=None).head_dtype for p in policies]
    assert heads == ["", "float32"]


def test_an_older_engine_is_refused() -> None:
    with pytest.raises(EngineVersionError, match=r"requires vLLM 0\.32 or later, found 0\.31\.1; fix: "):
        check_head(Version("0.31.1"))
    check_head(Version("0.32.0"))
