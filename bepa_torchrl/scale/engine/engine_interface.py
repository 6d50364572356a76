"""What an engine is asked for and what it returns; imports no vLLM, so that an engine may be on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from bepa_torchrl.data.prompt import Prompt
from bepa_torchrl.scale.engine.errors import EngineError
from bepa_torchrl.scale.engine.weight_sync.stream import WeightStream


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine must know of the policy, in JSON's types.

    Args:
        dtype: the dtype of weights and patches, for example ``bfloat16``.
        window: maximum tokens of a prompt and its response.
        max_rows: maximum rows that the engine computes at once.
        max_new_tokens: maximum tokens of a response.
        kv_cache_gb: memory of the key-value cache, 10^9 bytes.
        image_token_id: the token that represents a merged patch.
        end_token_ids: tokens that end a response.
        blocked_ids: tokens that are never sampled.
        lora_rank: largest rank of the adapters that the engine must take (:meth:`RowEngine.use_adapter`); 0: none.
        lora_targets: last parts of the names of their linear layers.
        head_dtype: in which it computes logits, for example ``float32``; empty: ``dtype``.
    """

    dtype: str
    window: int
    max_rows: int
    max_new_tokens: int
    kv_cache_gb: float
    image_token_id: int
    end_token_ids: tuple[int, ...]
    blocked_ids: tuple[int, ...]
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    head_dtype: str = ""


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One row.

    Args:
        prompt: token ids and PNG images.
        key: seed key of the row, see :class:`bepa_torchrl.policies.base.Sampler`.
        temperature: 0 is greedy.
        max_tokens: the maximum tokens of the response.
    """

    prompt: Prompt
    key: tuple[int, ...]
    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class EngineOutput:
    """One row's sampled tokens.

    Args:
        tokens: int64 ``[L]``.
        log_probs: float32 ``[L]``, nats, as the logits processor set them.
        prompt_tokens: number of tokens of the prompt.
        cached_tokens: how many of them were in the prefix cache.
    """

    tokens: Tensor
    log_probs: Tensor
    prompt_tokens: int
    cached_tokens: int


class EngineExited(EngineError):
    """The engine's process exited, gave no output for too long, or cannot be reached.

    Args:
        finished: outputs of the rows that were complete, by row.
    """

    def __init__(self, message: str, finished: Mapping[int, EngineOutput] | None = None) -> None:
        super().__init__(message)  # without ``finished``: pickle makes it from the message alone, then sets it
        self.finished = dict(finished or {})


class RowEngine(Protocol):
    """What :class:`~bepa_torchrl.scale.engine.sampler.VLLMSampler` samples with; no call waits without a deadline."""

    @property
    def concurrent(self) -> bool:
        """Whether several threads may call :meth:`generate` at once."""
        ...

    @property
    def running(self) -> bool:
        """Whether the engine was started and is not known to have exited."""
        ...

    def start(self, model: Path) -> None:
        """Starts the engine on a checkpoint folder, without adapters. Raises EngineError if it does not start."""
        ...

    def stop(self) -> None:
        """Ends the engine; does nothing if it is not running."""
        ...

    def generate(self, rows: Sequence[EngineRow]) -> list[EngineOutput]:
        """One output per row, in order. Raises EngineExited, or ValueError if a row is refused."""
        ...

    def reload(self, model: Path) -> None:
        """Replaces the weights by those of a folder and drops what was computed with the old ones, and the adapters.

        Raises:
            WeightSyncError: the engine refuses the weights or does not answer in time.
        """
        ...

    def use_adapter(self, folder: Path) -> None:
        """Adds a folder's LoRA adapters (PEFT's format) to the weights, instead of those that were added before.

        Keys and values that were computed with others are not used for them. No request may be in flight.

        Raises:
            WeightSyncError: the engine refuses the adapters or does not answer in time.
        """
        ...


class SleepingEngine(RowEngine, Protocol):
    """An engine that gives the GPU's memory up while it has nothing to do; it starts awake.

    Args:
        starts: how often it was started.
    """

    @property
    def starts(self) -> int: ...

    def sleep(self, level: Literal[1, 2]) -> None:
        """Drops the key-value cache; the weights are copied to the CPU (1) or dropped, too (2).

        No request may be in flight, and none may be made before :meth:`wake` of both parts.

        Raises:
            EngineError: it does not answer in time, or cannot.
        """
        ...

    def wake(self, part: Literal["weights", "kv_cache"]) -> None:
        """Takes the memory of a part again. After level 2 weights must be given to it between the two parts.

        Raises:
            EngineError: it does not answer in time, or cannot.
        """
        ...


class ReceivingEngine(RowEngine, Protocol):
    """An engine that weights can be sent to without a file (:mod:`.weight_sync.choice`)."""

    def receive(self, stream: WeightStream) -> None:
        """Replaces the weights by those of a stream and drops what was computed with the old ones, and the adapters.

        Raises:
            WeightSyncError: the engine did not get them in time, or refuses them; it was stopped, since it may have
                some of them.
        """
        ...
