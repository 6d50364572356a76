"""``policy.head_dtype=float32``: logits of half-precision weights that are not rounded to half precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from history_rows import required
from packaging.version import Version

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


def test_sampler_and_scorer_have_it_both(tmp_path: Path) -> None:
    """What was sampled is scored alike with either head, and by the other one differently: by logits' rounding."""
    saved = TransformersPolicy(small_checkpoint(), preset="compact").save(tmp_path / "policy")
    options = {"dtype": "bfloat16", "preset": "compact", "max_new_tokens": 6}
    plain, precise = (load_policy(saved, head_dtype=head, **options) for head in ("model", "float32"))
    prompts = required(plain.render([PromptContext(f"open {i}", [picture(i)]) for i in range(4)]))
    for own, other in ((plain, precise), (precise, plain)):
        drawn = own.sample(prompts, [(1, i) for i in range(4)])
        tokens, found = [row.tokens for row in drawn], torch.cat([row.log_probs for row in drawn])
        with torch.no_grad():
            same, different = (torch.cat(policy.response_log_probs(prompts, tokens)[0]) for policy in (own, other))
        torch.testing.assert_close(same, found, atol=1e-4, rtol=0)
        assert (different - found).abs().mean() > 1e-3
    heads = [engine_spec(p, kv_cache_gb=1.0, max_rows=1, adapters=None).head_dtype for p in (plain, precise)]
    assert heads == ["", "float32"]


def test_an_older_engine_is_refused() -> None:
    with pytest.raises(EngineVersionError, match=r"requires vLLM 0\.32 or later, found 0\.31\.1; fix: "):
        check_head(Version("0.31.1"))
    check_head(Version("0.32.0"))
