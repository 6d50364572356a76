"""SamplingCopy: what samples in rank 0's process while the policy in training is divided over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from time import perf_counter

import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, ModelSampler, Renderer
from bepa_torchrl.policies.transformers.lora import adapter_weights, base_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy


class SamplingCopy:
    """A :class:`~bepa_torchrl.policies.base.EngineSampler`: a whole copy of a sharded policy, which gets its weights.

    The copy is made when it is first needed, and :meth:`release` frees its memory until it is needed again: with
    asynchronous rollouts, which have samplers of their own, rank 0's device then has its shards only.

    Args:
        make: makes the copy, with the weights of the sharded policy's version 0 in the dtype in which it samples, and
            what samples: the copy, or an inference engine that gets its weights from the copy. The context ends what
            it has made.
        trained: the sharded policy.
        weights: (dtype) → the sharded policy's whole weights, sent in this dtype or (None) their own, a few at a time;
            those of its adapters if it has any.
    """

    def __init__(
        self,
        make: Callable[[], AbstractContextManager[tuple[TransformersPolicy, ModelSampler]]],
        trained: TransformersPolicy,
        weights: Callable[[torch.dtype | None], Iterator[tuple[str, Tensor]]],
    ) -> None:
        self._make, self.trained, self._weights = make, trained, weights
        self._context: AbstractContextManager[tuple[TransformersPolicy, ModelSampler]] | None = None
        self._made: tuple[TransformersPolicy, ModelSampler] | None = None
        self.version = 0
        self._seconds = 0.0

    @property
    def copy(self) -> TransformersPolicy:
        """The whole copy, with the weights of the last :meth:`sync` or :meth:`whole`."""
        return self._both()[0]

    @property
    def sampler(self) -> ModelSampler:
        """What samples."""
        return self._both()[1]

    def _both(self) -> tuple[TransformersPolicy, ModelSampler]:
        if self._made is None:
            context = self._make()
            self._made, self._context = context.__enter__(), context
            self.version = self._made[1].version
        return self._made

    @property
    def renderer(self) -> Renderer:
        """That of the sharded policy, which is the sampler's, too."""
        return self.trained.renderer

    @property
    def concurrent(self) -> bool:
        """One thread samples at a time."""
        return False

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """One response per prompt, by the weights of the last :meth:`sync`."""
        return self.sampler.sample(prompts, keys, temperature=temperature)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replaces all weights, until the next :meth:`sync`. Raises ValueError if they do not fit."""
        self.sampler.load_weights(weights, version=version)
        self.version = version

    def sync(self) -> None:
        """Copies the weights in training, a few at a time, if the copy has others; then updates the engine, if any.

        Weights are considered equal if their versions are.

        Raises:
            RankLostError: another rank has exited or is late.
            RuntimeError: the engine fails, or does not use these weights afterwards.
        """
        started = perf_counter()
        self._update()
        if isinstance(self.sampler, EngineSampler):
            self.sampler.sync()
        self.version = self.sampler.version
        self._seconds += perf_counter() - started

    def whole(self) -> TransformersPolicy:
        """The copy with the weights in training, for scoring: rank 0 cannot score with its shards alone.

        An engine is not updated. Raises RankLostError: another rank has exited or is late.
        """
        started = perf_counter()
        self._update()
        self._seconds += perf_counter() - started
        return self.copy

    def release(self) -> None:
        """Ends the engine, if there is one, and frees the copy; both are made again when they are needed."""
        context, self._context, self._made = self._context, None, None
        if context is not None:
            context.__exit__(None, None, None)

    def _update(self) -> None:
        if self.copy.version != self.trained.version:
            self._copy()

    @torch.no_grad()
    def _copy(self) -> None:
        own = adapter_weights(self.copy.model) or base_weights(self.copy.model)
        dtypes = {weight.dtype for weight in own.values()}
        for name, weight in self._weights(dtypes.pop() if len(dtypes) == 1 else None):
            own[name].copy_(weight)
        self.copy.encoder.forget()
        self.copy.version = self.trained.version

    def drain_metrics(self) -> dict[str, float]:
        """``seconds_sync`` since the last call, and the engine's metrics."""
        seconds, self._seconds = self._seconds, 0.0
        made = None if self._made is None else self._made[1]
        engine = made.drain_metrics() if isinstance(made, EngineSampler) else {}
        return {"seconds_sync": seconds} | engine

    def close(self) -> None:
        """As :meth:`release`."""
        self.release()
