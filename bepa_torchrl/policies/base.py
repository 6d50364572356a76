"""Renderer, Sampler, Learner: everything that the package requires of a policy, in three parts.

- A :class:`Renderer` turns a context (instruction, screenshots, past responses) into a prompt, and responses into text
  and back. It needs no weights. A new model family implements it.
- A :class:`Sampler` turns prompts and seed keys into responses with log-probabilities, by weights that it is given. A
  new inference engine implements it; it is given the renderer that makes its prompts.
- A :class:`Learner` owns the weights in training and scores rows.

One object may be several of them: :class:`bepa_torchrl.policies.transformers.policy.TransformersPolicy` samples and
learns with the same weights. With an inference engine there are two objects, and the engine's ``sync`` takes over the
learner's weights. :mod:`bepa_torchrl.testing` has a check for each: ``check_renderer``, ``check_sampler`` and
``check_learner``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from tensordict import TensorDictBase
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from osworld_gym.types import PromptContext
from osworld_gym.uitars.coords import ImageScaling


class PromptRenderer(Protocol):
    """The part of a :class:`Renderer` that rollouts require."""

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        """One prompt per context, in order; None if it does not fit the model (``StopReason.context_full``).

        Equal contexts give equal prompts. The name of a special token inside a text is encoded as text. A past response
        with known token ids (``response_tokens``) is part of the prompt as these ids, not encoded again from its text.
        """
        ...


@runtime_checkable
class ImagePrefetcher(Protocol):
    """A renderer that can prepare screenshots ahead of need, while desktops, the sampler or the GPU are busy."""

    def prefetch(self, images: Sequence[bytes]) -> None:
        """Starts to prepare PNGs that prompts will have; returns at once. Any thread may call it."""
        ...


@runtime_checkable
class Renderer(PromptRenderer, Protocol):
    """Prompts from contexts, and responses as text and as tokens. It has no weights."""

    @property
    def image_scaling(self) -> ImageScaling:
        """Size limits of the image processor, which map the model's pixels to screen pixels."""
        ...

    def encode_response(self, text: str) -> Tensor:
        """int64 ``[L]``: tokens of a text that was not sampled (a converted expert's), end token included."""
        ...

    def decode_responses(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Texts of sampled tokens, one per row, without the end token and other special tokens."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Samples responses.

    Attributes:
        version: number of optimiser steps of the weights that :meth:`sample` uses; recorded in rows.
    """

    version: int

    @property
    def renderer(self) -> PromptRenderer:
        """Makes the prompts that :meth:`sample` takes."""
        ...

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """One response per prompt, in order; an empty list for no prompts.

        Args:
            prompts: from the renderer, never None.
            keys: ``keys[i]`` is the seed key of row i: an episode key (:mod:`bepa_torchrl.data.seeding`) and the step.
                The row's tokens depend on weights, prompt, key and temperature only, not on batching or restarts.
            temperature: logits are divided by it; 0 selects the most likely token and ignores the keys.

        Returns:
            Responses; ``log_probs`` are those of softmax(logits / temperature), at temperature 0 of softmax(logits), in
            nats.
        """
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replaces all weights and sets ``version``. Caches that depend on the old weights are dropped.

        Args:
            weights: (name, tensor) of every weight, as :meth:`Learner.named_weights` returns them. Tensors are copied,
                and cast to this sampler's dtype and device.
            version: number of optimiser steps of these weights.

        Raises:
            ValueError: a weight is missing, unknown or of another shape; the sampler is unchanged.
        """
        ...


@runtime_checkable
class ModelSampler(Sampler, Protocol):
    """A sampler with its model's whole renderer: an experiment also encodes responses of experts."""

    @property
    def renderer(self) -> Renderer:
        """Makes the prompts, and encodes responses."""
        ...


@runtime_checkable
class RestingSampler(Protocol):
    """A sampler that can give its memory up between two collections of rollouts."""

    def rest(self) -> None:
        """Gives memory up until it samples or gets weights again, if it is set to; no call of it may be running."""
        ...


@runtime_checkable
class EngineSampler(ModelSampler, Protocol):
    """A sampler with weights of its own: an inference engine, or another copy of the model."""

    @property
    def concurrent(self) -> bool:
        """Whether several threads may call :meth:`sample` at once; their rows then share the engine's batches."""
        ...

    def sync(self) -> None:
        """Takes over the learner's weights, if it has others; an engine is verified to use them.

        Raises:
            RuntimeError: the engine fails, or does not use these weights afterwards.
        """
        ...

    def drain_metrics(self) -> dict[str, float]:
        """Metrics since the last call, with their names in the run's record."""
        ...

    def close(self) -> None:
        """Ends the engine."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Learns: an ``nn.Module`` that TorchRL's losses take as their actor.

    Attributes:
        version: optimiser steps taken; the code that takes a step adds 1.
    """

    version: int

    def get_dist(self, tensordict: TensorDictBase, logits_key: str = "logits") -> torch.distributions.Distribution:
        """The distribution of the rows' responses, for the losses of this package and TorchRL's ``GRPOLoss``.

        Args:
            tensordict: lazy stack ``[B]`` with PROMPT_TOKENS, IMAGES, RESPONSE_TOKENS (:mod:`bepa_torchrl.data.keys`).
            logits_key: TorchRL's calling convention; ignored, no logits are written.

        Returns:
            ``log_prob(RESPONSE_TOKENS)`` float32 ``[B, T]`` in nats, left padded with 0, differentiable; ``mask`` bool
            ``[B, T]``, True at response tokens.
        """
        ...

    def response_log_probs(
        self, prompts: Sequence[Prompt], responses: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Log-probs and entropies of given responses, per row float32 ``[L]`` in nats, from one forward pass.

        Args:
            prompts: one per row.
            responses: int64 ``[L]`` each, end token included.

        Returns:
            Log-probs, differentiable unless gradients are disabled; entropies, without gradient.
        """
        ...

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """The parameters, as of any ``nn.Module``."""
        ...

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The parameters with their names, as of any ``nn.Module``."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(name, detached tensor) of every weight, under the names of a saved checkpoint; tied ones under each name."""
        ...

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes a checkpoint folder that transformers can read, atomically.

        Raises:
            FileExistsError: ``path`` exists.
        """
        ...


@runtime_checkable
class Policy(ModelSampler, Learner, Protocol):
    """Samples and learns with the same weights, as an experiment's policy in training."""
