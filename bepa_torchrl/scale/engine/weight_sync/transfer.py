"""vLLM's own weight transfer from this process to an engine that it has started: IPC on one GPU, NCCL between several.

The calls are those of vLLM 0.32 (``vllm.distributed.weight_transfer``): a trainer's end is made once per engine and
then sends the same source again at each sync; it drives ``init_weight_transfer_engine``, ``start_weight_update``,
``update_weights`` and ``finish_weight_update`` of the engine through a client. No call waits without a deadline: what a
thread still waits for after it is ended with the engine's processes.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor
from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from bepa_torchrl.scale.engine.weight_sync.stream import WeightStream

#: with it vLLM pickles what msgpack cannot encode, between this process and its own engine: the handles of shared
#: memory are such. The sockets are files of this machine that no other user may open.
PICKLE = "VLLM_ALLOW_INSECURE_SERIALIZATION"
_LOOPBACK = "127.0.0.1"


class StreamSource(WeightSource):
    """A :class:`WeightStream` as vLLM's trainer end reads it; each sync replaces the stream."""

    def __init__(self) -> None:
        self.stream: WeightStream | None = None

    def metadata(self) -> list[ParamMeta]:
        assert self.stream is not None
        return [ParamMeta(name, dtype, shape) for name, dtype, shape in self.stream.described]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        assert self.stream is not None
        return iter(self.stream)


class WeightSyncCalls:
    """The engine's calls of a sync, as vLLM's trainer end makes them (``VLLMWeightSyncClient``).

    Args:
        llm: vLLM's ``AsyncLLM``.
        call: runs a coroutine on its loop, with a deadline.
    """

    def __init__(self, llm: Any, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._llm, self._call = llm, call

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call(self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=init_info)))

    def start_weight_update(self) -> None:
        self._call(self._llm.start_weight_update())

    def update_weights(self, update_info: Any) -> None:
        self._call(self._llm.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call(self._llm.finish_weight_update(weight_version))


class EngineTransfer:
    """Sends weights to one start of an engine; another start needs another one.

    Args:
        kind: ``ipc`` or ``nccl``.
        llm: vLLM's ``AsyncLLM``, started with :func:`transfer_arguments`.
        call: runs a coroutine on its loop, with a deadline.
        device: of the weights.
        timeout: seconds for a sync.
    """

    def __init__(
        self,
        kind: Literal["ipc", "nccl"],
        llm: Any,
        call: Callable[[Coroutine[Any, Any, Any]], Any],
        *,
        device: torch.device,
        timeout: float,
    ) -> None:
        self._kind, self._device, self._timeout = kind, device, timeout
        self._client = WeightSyncCalls(llm, call)
        self._workers = int(llm.vllm_config.parallel_config.world_size_across_dp)
        self._source = StreamSource()
        self._trainer: Any = None

    def send(self, stream: WeightStream) -> None:
        """Gives the engine all weights; returns when it has them.

        Raises:
            TimeoutError: not in time; the engine must be ended, and its thread here is given up. Or as vLLM does.
        """
        self._source.stream = stream
        outcome: Future[None] = Future()

        def run() -> None:
            try:
                with torch.cuda.device(self._device) if self._device.type == "cuda" else nullcontext():
                    if self._trainer is None:
                        self._trainer = WeightTransferTrainerFactory.trainer_init(
                            self._init_info(), client=self._client, source=self._source
                        )
                    self._trainer.send_weights()
            except BaseException as error:  # noqa: BLE001  raised in the caller
                outcome.set_exception(error)
            else:
                outcome.set_result(None)

        threading.Thread(target=run, name=f"weights by {self._kind}", daemon=True).start()
        outcome.result(self._timeout)
        self._source.stream = None

    def close(self) -> None:
        """Ends this process's end, before the engine's is ended."""
        trainer, self._trainer = self._trainer, None
        if trainer is not None:
            trainer.shutdown()

    def _init_info(self) -> TrainerInitInfo:
        if self._kind == "ipc":
            return IPCTrainerInitInfo(rank=0, packed=True)
        return NCCLTrainerInitInfo(
            rank=0, master_address=_LOOPBACK, master_port=_free_port(), world_size=1 + self._workers, packed=True
        )


def transfer_arguments(kind: Literal["ipc", "nccl"]) -> dict[str, Any]:
    """Arguments of ``AsyncEngineArgs`` with which the engine can be sent weights."""
    return {"weight_transfer_config": {"backend": kind}}


@contextmanager
def pickled_handles(kind: str, environ: Any = os.environ) -> Iterator[None]:
    """While an engine with ``ipc`` runs: lets vLLM send it handles, which only pickle encodes."""
    before: Mapping[str, str] = dict(environ)
    if kind == "ipc":
        environ[PICKLE] = "1"
    try:
        yield
    finally:
        if kind == "ipc" and PICKLE not in before:
            environ.pop(PICKLE, None)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((_LOOPBACK, 0))
        return int(found.getsockname()[1])
