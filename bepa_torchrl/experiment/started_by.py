"""Who has started this process: the user, torchrun, or ``bepa train`` by Ray. Imports no large package."""

from __future__ import annotations

import os

from bepa_torchrl.experiment.settings import Settings

_TORCHRUN = "TORCHELASTIC_RUN_ID"
#: environment variable of ranks that Ray has placed, with the address of their cluster
RAY_CLUSTER = "BEPA_RAY_CLUSTER"


def is_rank() -> bool:
    """Whether torchrun or Ray has started this process, or the one that has started it, as one of several ranks."""
    return _TORCHRUN in os.environ


def by_ray() -> bool:
    """Whether Ray has placed it (``cluster.trainer=ray``)."""
    return RAY_CLUSTER in os.environ


def by_torchrun() -> bool:
    """Whether torchrun has started it."""
    return is_rank() and not by_ray()


def cluster_address(settings: Settings) -> str | None:
    """``cluster.address``; of a rank that Ray has placed, the address of the cluster that it is in."""
    address = settings.cluster.address
    return address if address is None else os.environ.get(RAY_CLUSTER, address)
