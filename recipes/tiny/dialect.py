"""The expert's dialect under the policy: how often it is used unprompted, and how well when it is prompted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import Policy, Renderer
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.starts import responses_of, share_starting
from osworld_gym.tasks.oracles.sim.expert_prose import FIRST_WORD
from osworld_gym.types import PromptContext

#: every response of the expert starts like this, none of the native oracle's
EXPERT_START = f"Thought: {FIRST_WORD}"


class PrefixedRenderer:
    """Renders prompts that are followed by the beginning of the response; otherwise as another renderer.

    Args:
        renderer: renders the prompts.
        start: the beginning of each response.
    """

    def __init__(self, renderer: Renderer, start: str) -> None:
        self._renderer = renderer
        self._tokens = renderer.encode_response(start)[:-1]  # without the end token
        self.image_scaling = renderer.image_scaling
        self.encode_response, self.decode_responses = renderer.encode_response, renderer.decode_responses

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """The prompts, each followed by the beginning of the response."""
        return [
            prompt and replace(prompt, tokens=torch.cat([prompt.tokens, self._tokens]))
            for prompt in self._renderer.render(contexts)
        ]


class PrefixedPolicy:
    """A sampler whose responses all start with a given text; the policy writes the rest.

    Args:
        policy: writes the rest.
        start: the beginning of each response.
    """

    def __init__(self, policy: Policy, start: str) -> None:
        self._policy, self._start = policy, start
        self.renderer = PrefixedRenderer(policy.renderer, start)
        self.version = policy.version

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """Responses with the beginning in their text; tokens and log-probs are those of the rest."""
        found = self._policy.sample(prompts, keys, temperature=temperature)
        return [replace(response, text=self._start + response.text) for response in found]

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replaces the policy's weights."""
        self._policy.load_weights(weights, version=version)
        self.version = version


def share_in_dialect(results: Sequence[EpisodeResult]) -> float:
    """The share of all responses of the episodes that start like the expert's; 0 without a response."""
    return share_starting(responses_of(results), EXPERT_START)
