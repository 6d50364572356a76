"""The small policies that the tests of the vLLM policy train."""

from __future__ import annotations

from typing import Any

import torch

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
