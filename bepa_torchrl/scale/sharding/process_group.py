"""The process group of a run's ranks or of a torchrun job, and what happens when one of its ranks is lost."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from bepa_torchrl.training.rank_failures import rank_failures


def join_process_group(*, timeout: float = 600.0) -> torch.device:
    """Joins the process group that torchrun describes in the environment; returns this rank's device.

    NCCL and one GPU per local rank if there are GPUs, otherwise gloo on the CPU.

    Args:
        timeout: seconds that a collective operation waits for the other ranks.

    Raises:
        ValueError: the process was not started by torchrun.
        RankLostError: the other ranks did not join within the timeout.
    """
    missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(f"{', '.join(missing)} not set; start the program by torchrun --nproc-per-node=N")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    with rank_failures():
        dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout))
    return device


def join_local_ranks(file: Path, rank: int, ranks: int, *, device: str, timeout: float) -> torch.device:
    """Joins the process group of processes on one machine; returns this rank's device.

    Args:
        file: the same for all ranks, in a folder of this machine; does not exist before the first rank joins.
        rank: the rank of this process; on CUDA it is also the index of its GPU.
        ranks: number of processes.
        device: type of the devices, ``cpu`` (gloo, on the loopback interface) or ``cuda`` (NCCL; tensors on the CPU are
            sent by gloo).
        timeout: seconds that a collective operation waits for the other ranks.

    Raises:
        RankLostError: the other ranks did not join within the timeout.
    """
    chosen = torch.device("cuda", rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(chosen)
    store = FileStore(str(file), ranks)
    join_group(store, rank, ranks, device=device, one_machine=True, timeout=timeout)
    return chosen


def join_group(store: Store, rank: int, ranks: int, *, device: str, one_machine: bool, timeout: float) -> None:
    """Joins the process group of a store.

    Args:
        store: the same for all ranks; without keys of an earlier group.
        rank: the rank of this process.
        ranks: number of processes.
        device: type of the devices, ``cpu`` (gloo) or ``cuda`` (NCCL; tensors on the CPU are sent by gloo).
        one_machine: gloo uses the loopback interface, unless GLOO_SOCKET_IFNAME is set.
        timeout: seconds that a collective operation waits for the other ranks.

    Raises:
        RankLostError: the other ranks did not join within the timeout.
    """
    if one_machine and sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # not reachable from other machines
    limit = timedelta(seconds=timeout)
    store.set_timeout(limit)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    with rank_failures():
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=limit)
