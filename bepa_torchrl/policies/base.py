"""What the collector, the self-roll and the trainer ask of a policy; everything behind it may change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from osworld_gym.types import PromptContext


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the model sees it.

    Args:
        tokens: int64 ``[P]``, chat template applied, image tokens expanded to one per merged patch.
        images: PNG bytes of the images in prompt order (the same objects as in the context: no copies).
    """

    tokens: Tensor
    images: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """One sampled answer.

    Args:
        text: decoded without the end token and other special tokens, except the box tokens.
        tokens: int64 ``[L]``, exactly as sampled, end token included when it was sampled.
        log_probs: float32 ``[L]``, nats, log-probability of each token under the untempered model distribution.
    """

    text: str
    tokens: Tensor
    log_probs: Tensor


@runtime_checkable
class RolloutPolicy(Protocol):
    """A policy that can act. Its weights' version is ``policy_version`` (optimiser steps taken)."""

    policy_version: int

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context; None where it would not fit the model (StopReason.context_full)."""
        ...

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Answer]:
        """One answer per prompt.

        ``keys[i]`` names the place of row i, (seed, iteration, task number, slot, step): its randomness depends on
        nothing else, so batching and restarts change nothing. ``temperature=0`` is greedy.
        """
        ...
