"""vLLM's NCCL weight transfer with gloo in the place of NCCL, so that it runs on the CPU.

Everything but the tensors' way is vLLM's own: the trainer's end with its order of calls, the engine's calls through
AsyncLLM and its worker, and the loading of the weights. Replaced are the process group, and the loop that broadcasts
each tensor, since vLLM's uses CUDA streams. The engine's process imports this module as a worker extension.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.distributed.weight_transfer import WeightTransferEngineFactory, nccl_engine
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerWeightTransferEngine, NCCLWeightTransferEngine


class GlooGroup:
    """The calls of vLLM's NCCL communicator that a transfer makes."""

    def __init__(self, address: str, port: int, rank: int, size: int) -> None:
        self._group: Any = stateless_init_torch_distributed_process_group(address, port, rank, size, backend="gloo")

    def broadcast(self, tensor: torch.Tensor) -> None:
        torch.distributed.broadcast(tensor, group=self._group, group_src=0)

    def destroy(self) -> None:
        self._group = None


class Worker(NCCLWeightTransferEngine):
    """The engine's end."""

    def init_transfer_engine(self, init_info: Any) -> None:
        rank = init_info.rank_offset + self.parallel_config.rank
        self.group = GlooGroup(init_info.master_address, init_info.master_port, rank, init_info.world_size)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        told = self.parse_update_info(update_info)
        for name, dtype, shape in zip(told.names, told.dtype_names, told.shapes, strict=True):
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self.group.broadcast(weight)
            self.model.load_weights([(name, weight)])


class Trainer(NCCLTrainerWeightTransferEngine):
    """The trainer's end; ``sent`` are the names of the last sync."""

    sent: list[str] = []  # noqa: RUF012

    def _broadcast(self, source: Any, meta: Any) -> None:
        group: Any = self.model_update_group
        type(self).sent = []
        for name, tensor in self._checked_iter(source, meta):
            group.broadcast(tensor)
            self.sent.append(name)


def open_trainer_endpoint(init_info: Any) -> GlooGroup:
    """In the place of vLLM's function of this name."""
    return GlooGroup(init_info.master_address, init_info.master_port, 0, init_info.world_size)


class Extension:
    """Adds nothing to vLLM's worker: its import replaces the engine's end in the engine's process."""


WeightTransferEngineFactory._registry["nccl"] = lambda: Worker
__all__ = ["Extension", "Trainer", "Worker", "nccl_engine", "open_trainer_endpoint"]
