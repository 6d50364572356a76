"""Runs a function on several processes of a gloo process group, under a deadline."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from listening_ports import free_ports

DEADLINE = 120.0  #: seconds, many times what a test requires


def run_ranks(
    function: Callable[..., None], ranks: int, folder: Path, *args: Any, deadline: float = DEADLINE
) -> list[int]:
    """Calls ``function(folder, *args)`` on every rank; returns the exit codes, and kills ranks past the deadline.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as torchrun does. A rank that raises writes its traceback to
    ``folder / "error-<rank>"`` and exits with 1.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bepa_torchrl.testing", "torch.distributed.fsdp"])
    (port,) = free_ports(1)
    processes = [
        context.Process(target=_rank, args=(function, rank, ranks, port, folder, args), daemon=True)
        for rank in range(ranks)
    ]
    end = time.monotonic() + deadline
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
    finally:
        late = [process for process in processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
    assert not late, f"{len(late)} of {ranks} ranks still ran after {deadline:.0f} s\n{errors_of(folder)}"
    return [process.exitcode or 0 for process in processes]


def errors_of(folder: Path) -> str:
    """The tracebacks of a job's ranks."""
    return "\n".join(path.read_text() for path in sorted(folder.glob("error-*")))


def _rank(function: Callable[..., None], rank: int, ranks: int, port: int, folder: Path, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CUDA_VISIBLE_DEVICES": ""}
    try:
        function(folder, *args)
    except BaseException:  # noqa: BLE001 - reported to the parent process
        (folder / f"error-{rank}").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)  # without destroying the process group, which would wait for other ranks
