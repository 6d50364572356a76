"""How weights reach an engine at a sync: as a file, or by vLLM's own transfers between GPUs. Imports no vLLM.

``ipc`` shares the memory of one GPU between the trainer's process and the engine's; ``nccl`` sends from GPU to GPU;
``folder``, a checkpoint that the engine reads, works everywhere and is the only one of the CPU build. vLLM 0.32's
transfers (``vllm.distributed.weight_transfer``) are known to fail with two processes on one GPU (NCCL), and with
several workers of which one only shares the trainer's GPU (IPC).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from packaging.version import Version

Transfer: TypeAlias = Literal["folder", "ipc", "nccl"]
TransferSetting: TypeAlias = Literal["auto", "folder", "ipc", "nccl"]
SINCE = Version("0.32")  #: first vLLM whose transfers were read to have these names
_DEVICES = "CUDA_VISIBLE_DEVICES"
_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True)
class Ends:
    """The two ends of a weight sync.

    Args:
        trainer: the GPU with the weights, as in CUDA_VISIBLE_DEVICES; None: they are on the CPU.
        engine: the GPUs of the engine's workers, in the same form; empty: it computes on the CPU.
        here: whether this process has started the engine.
        whole: whether all weights are sent at each sync, and not adapters alone.
        vllm: the version of the engine; None: not known here.
    """

    trainer: str | None
    engine: tuple[str, ...]
    here: bool = True
    whole: bool = True
    vllm: Version | None = None


def choose_transfer(setting: TransferSetting, ends: Ends) -> Transfer:
    """The way of the weights; ``auto`` takes the first of IPC, NCCL and the folder that is possible.

    Raises:
        ValueError: ``ipc`` or ``nccl`` is not possible between these ends; the message says why.
    """
    if setting == "folder":
        return "folder"
    if setting != "auto":
        reason = reason_against(setting, ends)
        if reason is not None:
            raise ValueError(f"policy.engine.weights={setting}: {reason}; set policy.engine.weights=auto")
        return setting
    if reason_against("ipc", ends) is None:
        return "ipc"
    return "nccl" if reason_against("nccl", ends) is None else "folder"


def reason_against(transfer: Literal["ipc", "nccl"], ends: Ends) -> str | None:
    """Why a transfer between GPUs is not possible; None: it is."""
    if not ends.here:
        return "an engine behind policy.engine.url gets its weights as files, by HTTP"
    if not ends.whole:
        return "LoRA adapters are sent alone, as a small file (policy.engine.adapters=merged sends all weights)"
    if ends.trainer is None or not ends.engine:
        return "vLLM's transfers are between GPUs, and the trainer or the engine computes on the CPU (policy.device)"
    if ends.vllm is None or ends.vllm < SINCE:
        return f"it requires vLLM {SINCE} or later, found {ends.vllm}"
    if any(ends.trainer.isdecimal() != name.isdecimal() for name in ends.engine):
        listed = ", ".join(ends.engine)
        return f"whether GPU {ends.trainer} is one of {listed} cannot be told; name all GPUs in the same form"
    if transfer == "ipc" and ends.engine != (ends.trainer,):
        return (
            f"processes share memory on one GPU only, the trainer is on GPU {ends.trainer}, the engine on "
            f"{', '.join(ends.engine)}"
        )
    if transfer == "nccl" and ends.trainer in ends.engine:
        return f"NCCL takes one process per GPU, and trainer and engine share GPU {ends.trainer}"
    return None


def gpus_of(
    index: int, devices: str | None, arguments: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[str, tuple[str, ...]]:
    """The trainer's GPU and those of the engine's workers, as in CUDA_VISIBLE_DEVICES.

    Args:
        index: of the trainer's CUDA device in this process.
        devices: CUDA_VISIBLE_DEVICES of the engine's processes; None: that of this process.
        arguments: of the engine, of which its number of workers follows.
        environ: the environment of this process.
    """
    workers = 1
    for name in _PARALLEL:
        workers *= int(arguments.get(name, 1))
    visible = environ.get(_DEVICES)
    return _names(visible, index + 1)[index], _names(visible if devices is None else devices, workers)[:workers]


def _names(devices: str | None, count: int) -> tuple[str, ...]:
    """The names of a list of devices; the numbers from 0 to ``count`` - 1 without one."""
    if devices is None:
        return tuple(map(str, range(count)))
    return tuple(name.strip() for name in devices.split(",") if name.strip())
