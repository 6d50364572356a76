"""Sleep and wake of an engine beside the trainer, in the order that vLLM 0.32 requires.

An update takes the memory that the engine's key-value cache and weights had. vLLM has two levels: after level 1 the
weights wait in the CPU's memory, after level 2 they are gone, and must be loaded after their memory was taken again and
before the cache's is (read in ``vllm/v1/engine/core.py`` and ``vllm/v1/worker/gpu_worker.py``). Level 2 is used
where all weights are sent anyway, level 1 where the engine keeps them and gets adapters alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from bepa_torchrl.scale.engine.engine_interface import SleepingEngine


class Rest:
    """Whether an engine sleeps; one thread at a time may call it.

    Args:
        engine: the engine.
        weights_stay: whether the engine keeps its weights while it sleeps.
    """

    def __init__(self, engine: SleepingEngine, *, weights_stay: bool) -> None:
        self._engine, self.weights_stay = engine, weights_stay
        self.asleep = False

    def begin(self) -> None:
        """Lets the engine sleep, if it runs and does not yet. Raises EngineError if it cannot."""
        if self._engine.running and not self.asleep:
            level: Literal[1, 2] = 1 if self.weights_stay else 2
            self._engine.sleep(level)
            self.asleep = True

    def end(self) -> None:
        """Wakes an engine that has kept its weights. Raises EngineError if it cannot."""
        assert self.weights_stay
        with self.ending():
            pass

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Wakes the engine; the block gives it its weights. One that has exited is started by the block, awake.

        Raises:
            EngineError: it cannot wake up.
        """
        asleep, self.asleep = self.asleep and self._engine.running, False
        if asleep:
            self._wake("weights")
        starts = self._engine.starts
        try:
            yield
        except Exception:
            if asleep:  # its weights may be missing
                self._engine.stop()
            raise
        if asleep and self._engine.running and self._engine.starts == starts:
            self._wake("kv_cache")

    def _wake(self, part: Literal["weights", "kv_cache"]) -> None:
        """Half awake it is of no use: then it is stopped, and started again with the next weights."""
        try:
            self._engine.wake(part)
        except Exception:
            self._engine.stop()
            raise


def check_sleep(device: torch.device, *, here: bool) -> None:
    """Raises ValueError unless an engine on this device can sleep."""
    if not here:
        raise ValueError(
            "policy.engine.sleep=true requires an engine beside the trainer; the one at policy.engine.url has a GPU of "
            "its own: leave policy.engine.url out, or set policy.engine.sleep=false"
        )
    if device.type != "cuda":
        raise ValueError(
            f"policy.engine.sleep=true requires policy.device=cuda, got {device}: vLLM gives up the memory of GPUs "
            "only; set policy.engine.sleep=false"
        )
