"""ScriptedLearner: scripted responses, with log-probs and gradients of a real model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.transformers.lora import Lora
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing.scripted import DONE, PRESS, SeedKey
from bepa_torchrl.testing.small_model import small_checkpoint


class ScriptedLearner(TransformersPolicy):
    """A small random Qwen2.5-VL whose responses are scripted; ``wins(key)`` decides whether an episode succeeds.

    Args:
        wins: as in :class:`bepa_torchrl.testing.ScriptedPolicy`.
        seed: seed of the weights.
        lora: adapters; None: all weights are trained.
    """

    def __init__(self, wins: Callable[[SeedKey], bool], *, seed: int = 0, lora: Lora | None = None) -> None:
        super().__init__(small_checkpoint(seed, spread=0.1), preset="compact", max_new_tokens=32, lora=lora)
        self.wins = wins

    @torch.no_grad()
    def sample(self, prompts: Sequence[Prompt], keys: Sequence[SeedKey], *, temperature: float = 1.0) -> list[Response]:
        del temperature
        texts = [PRESS if self.wins(key[:-1]) and key[-1] == 0 else DONE for key in keys]
        tokens = [self.encode_response(text) for text in texts]
        log_probs, _ = self.response_log_probs(prompts, tokens)
        return [Response(*parts) for parts in zip(texts, tokens, log_probs, strict=True)]
