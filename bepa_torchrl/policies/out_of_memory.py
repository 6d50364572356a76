"""Turns a device's out-of-memory errors into one line that names the setting to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from bepa_torchrl.data.packing import Pack, TokenBudgetError
from bepa_torchrl.policies.transformers.activation_checkpointing import checkpoints_activations

#: texts of torch's errors without a class: the CPU's allocator (Linux, elsewhere), CUDA outside torch's allocator
_TEXTS = ("can't allocate memory", "not enough memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
_SHORTER = "shorten prompts by policy.max_prompt_tokens or policy.history"


class DeviceMemoryError(RuntimeError):
    """A device is out of memory, other than in a micro-batch. One line: in what, and which setting to change."""


@contextmanager
def token_budget_advice(pack: Pack, trained: torch.nn.Module | None = None) -> Iterator[None]:
    """Wraps the forward and backward pass of a micro-batch.

    Args:
        pack: the micro-batch.
        trained: the loss or policy whose gradient is computed; None: no gradient is.

    Raises:
        TokenBudgetError: the GPU or the CPU is out of memory; the message has the value of ``train.max_tokens`` to try:
            half of the micro-batch's tokens, but at least its longest row's.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        raise TokenBudgetError(_budget_advice(pack, trained)) from error


def sampling_advice(lengths: Sequence[int]) -> AbstractContextManager[None]:
    """Wraps the sampling of one batch of rows, whose lengths are in tokens, prompt and longest response together.

    Raises:
        DeviceMemoryError: out of memory; the message has the values of ``policy.max_batch_tokens`` and
            ``policy.max_rows`` to try.
    """
    return _advice(lambda: _sampling_advice(max(lengths), len(lengths)))


def optimizer_advice(what: str, parameters: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Wraps what allocates an optimiser's state: its construction (master weights), its first step (moments).

    Args:
        what: is done, for the message.
        parameters: the optimiser's.

    Raises:
        DeviceMemoryError: out of memory; the message names the settings that make the state smaller.
    """
    return _advice(lambda: _optimizer_advice(what, parameters))


def placement_advice(model: torch.nn.Module, source: str, device: torch.device | str) -> AbstractContextManager[None]:
    """Wraps the move of a model, loaded from ``source``, to a device.

    Raises:
        DeviceMemoryError: out of memory; the message has the weights' size.
    """
    return _advice(lambda: _placement_advice(model, source, device))


@contextmanager
def _advice(text: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _out_of_memory(error):
            raise
        raise DeviceMemoryError(text()) from error


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in _TEXTS)


def _budget_advice(pack: Pack, trained: torch.nn.Module | None) -> str:
    longest, count = max(pack.hosts), len(pack.hosts)
    if count == 1:
        helps = trained is not None and not checkpoints_activations(trained)
        return (
            f"out of memory in a micro-batch of one row of {longest} tokens, which cannot be split; "
            f"{'set policy.activation_checkpointing=true, or ' if helps else ''}{_SHORTER}"
        )
    return (
        f"out of memory in a micro-batch of {pack.tokens} tokens (longest row {longest} x {count} rows that share no "
        f"prefix); set train.max_tokens={max(longest, pack.tokens // 2)}, and continue the run with resume=true"
    )


def _sampling_advice(longest: int, count: int) -> str:
    if count == 1:
        return (
            f"out of memory while one row of {longest} tokens (prompt and longest response) is sampled, which cannot "
            f"be split; {_SHORTER}, or lower policy.max_new_tokens"
        )
    return (
        f"out of memory while a batch of {count} rows of up to {longest} tokens (prompt and longest response) is "
        f"sampled; set policy.max_batch_tokens={max(longest, longest * count // 2)} or policy.max_rows={count // 2}, "
        "and continue the run with resume=true"
    )


def _optimizer_advice(what: str, parameters: Sequence[Tensor]) -> str:
    divided = any(isinstance(parameter, DTensor) for parameter in parameters)
    smaller = "more GPUs (train.ranks)" if divided else "optimizer.kind=adamw_8bit"
    count = sum(parameter.numel() for parameter in parameters)
    return (
        f"out of memory while {what} {count:,} trained parameters; start a run with what is not in use yet of "
        f"{smaller}, train.frozen=[visual] and adapters (policy.lora.rank=64)"
    )


def _placement_advice(model: torch.nn.Module, source: str, device: torch.device | str) -> str:
    weights = list(model.parameters())
    size, single = sum(weight.nbytes for weight in weights), any(w.dtype == torch.float32 for w in weights)
    return (
        f"{source}: out of memory while {size / 1e9:.1f} GB of weights are moved to {device}; "
        f"{'set policy.dtype=bfloat16, ' if single else ''}end what else holds its memory (other programs, further "
        "methods at once: processes=1), or set policy.device to a larger one"
    )
