"""EngineReplica: a vLLM engine that is given its weights, as the rollout services of asynchronous runs require it.

No policy in training is in its process. The policy with which its engine was made takes that place: it renders the
prompts, and after each load the engine's log-probs are compared with its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.scale.engine.errors import EngineError
from bepa_torchrl.scale.engine.policy import VLLMPolicy
from osworld_gym.types import PromptContext


class EngineReplica:
    """A :class:`bepa_torchrl.policies.base.RolloutPolicy` with weights of its own.

    Args:
        engine: samples; its ``trainer`` must be used by nothing else, since its weights are replaced, too.
    """

    def __init__(self, engine: VLLMPolicy) -> None:
        self._engine = engine

    @property
    def version(self) -> int:
        """Optimiser steps of the loaded weights."""
        return self._engine.version

    @version.setter
    def version(self, _: int) -> None:
        raise AttributeError("the version is that of the engine's weights; load others")

    @property
    def concurrent(self) -> bool:
        """Whether several threads may call :meth:`sample` at once, while no weights are loaded."""
        return self._engine.concurrent

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        return self._engine.render(contexts)

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        """As :meth:`.policy.VLLMPolicy.sample`; an engine that has exited is started again.

        Raises:
            EngineError: no weights were loaded yet, or as there.
        """
        if not self._engine.has_weights:
            raise EngineError("no weights were loaded yet; call load_weights first")
        return self._engine.sample(prompts, keys, temperature=temperature)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replaces all weights, also by those of the same version: a resumed run may have others.

        Raises:
            ValueError: a weight is missing, unknown or of another shape; nothing is changed.
            WeightSyncError: the engine refuses the weights, or does not use them afterwards.
            EngineError: the engine does not start.
        """
        self._engine.trainer.load_weights(weights, version=version)
        self._engine.load_and_verify()

    def drain_metrics(self) -> dict[str, float]:
        """Metrics since the last call; see ``docs/vllm.md``."""
        return self._engine.drain_metrics()

    def close(self) -> None:
        """Ends the engine and removes its checkpoints."""
        self._engine.close()
