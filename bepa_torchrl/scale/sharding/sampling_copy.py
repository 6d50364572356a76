"""SamplingCopy: what samples on rank 0 while the policy in training is divided over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter

import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler, ModelSampler, Renderer
from bepa_torchrl.policies.transformers.lora import adapter_weights, base_weights
from bepa_torchrl.policies.transformers.policy import TransformersPolicy


class SamplingCopy:
    """A :class:`~bepa_torchrl.policies.base.EngineSampler`: a whole copy of a sharded policy, which gets its weights.

    Args:
        copy: has the weights of the sharded policy's version 0, in the dtype in which it samples.
        trained: the sharded policy.
        weights: (dtype) → the sharded policy's whole weights, sent in this dtype or (None) their own, a few at a time;
            those of its adapters if it has any.
        sampler: samples; ``copy``, or an inference engine that gets its weights from ``copy``.
    """

    def __init__(
        self,
        copy: TransformersPolicy,
        trained: TransformersPolicy,
        weights: Callable[[torch.dtype | None], Iterator[tuple[str, Tensor]]],
        sampler: ModelSampler,
    ) -> None:
        self.copy, self.trained, self.sampler, self._weights = copy, trained, sampler, weights
        self.version = sampler.version
        self._seconds = 0.0

    @property
    def renderer(self) -> Renderer:
        """The sampler's."""
        return self.sampler.renderer

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
        if self.copy.version != self.trained.version:
            self._copy()
        if isinstance(self.sampler, EngineSampler):
            self.sampler.sync()
        self.version = self.sampler.version
        self._seconds += perf_counter() - started

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
        engine = self.sampler.drain_metrics() if isinstance(self.sampler, EngineSampler) else {}
        return {"seconds_sync": seconds} | engine

    def close(self) -> None:
        """Ends the engine, if there is one."""
        if isinstance(self.sampler, EngineSampler):
            self.sampler.close()
