"""The typed error of a lost rank: what torch raises in a collective operation depends on the backend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

#: words of gloo's and NCCL's errors that torch raises as a plain RuntimeError
_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "timed out waiting")


class RankLostError(ConnectionError):
    """Another rank has exited, or has not reached a collective operation within the timeout."""


@contextmanager
def rank_failures() -> Iterator[None]:
    """Wraps collective operations.

    Raises:
        RankLostError: instead of the backend's error if another rank has exited or is late.
    """
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if not isinstance(error, dist.DistError) and not any(word in text for word in _WORDS):
            raise
        rank = dist.get_rank() if dist.is_initialized() else os.environ.get("RANK", "?")
        raise RankLostError(
            f"rank {rank} lost another rank of the process group, or it did not answer within the timeout "
            f"({str(error).splitlines()[0]}); see the other ranks' errors, then start all of them again from the "
            "newest checkpoint (any number of processes)"
        ) from error
