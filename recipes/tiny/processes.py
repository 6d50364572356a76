"""Processes of one machine that train together: each computes some parts of a step, all make the same update."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

#: seconds that a process waits for the others' gradients: a step takes less than one
PATIENCE = 600.0


@dataclass(frozen=True)
class Processes:
    """This process among those that train together.

    Args:
        rank: number of this process, from 0.
        count: number of processes.
    """

    rank: int
    count: int

    def own(self, parts: int) -> tuple[int, ...]:
        """The parts of a step that are this process's.

        Raises:
            ValueError: the parts cannot be shared equally.
        """
        if parts % self.count:
            raise ValueError(
                f"expected a number of processes that divides the recipe's {parts} parts, got {self.count}; "
                f"fix: torchrun --nproc-per-node {parts}, or one process without torchrun"
            )
        return tuple(range(self.rank, parts, self.count))

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replaces the gradients by their sums over all processes; a parameter without one has none in any of them."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))


ALONE = Processes(0, 1)


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that ``torchrun`` started, connected to each other; this process alone without it."""
    if "WORLD_SIZE" not in os.environ:
        yield ALONE
        return
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE))
    try:
        yield Processes(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
