"""The GPUs of the trainer's ranks, which Ray on the same machine must not give to rollout services; requires ``ray``.

Ray does not know of the ranks, which are no actors. It counts the GPUs of a node, and gives an actor with ``num_gpus``
some of them by CUDA_VISIBLE_DEVICES. One without ``num_gpus`` sees all, so that the settings require
``cluster.gpus_per_replica`` of services whose policy computes on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from osworld_gym.errors import DesktopError, FailureReason

DEVICES = "CUDA_VISIBLE_DEVICES"
_ANSWER_SECONDS = 60.0


@contextmanager
def other_gpus(taken: Collection[str], every: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A Ray node that is started in the block has the GPUs that are not taken.

    Args:
        taken: GPUs of the ranks, as in CUDA_VISIBLE_DEVICES; none: Ray counts the machine's itself.
        every: all GPUs that this process sees, in the same form.

    Yields:
        Arguments of ``ray.init``.
    """
    if not taken:
        yield {}
        return
    left = [gpu for gpu in every if gpu not in taken]
    before = os.environ.get(DEVICES)
    os.environ[DEVICES] = ",".join(left)
    try:
        yield {"num_gpus": len(left)}
    finally:
        if before is None:
            del os.environ[DEVICES]
        else:
            os.environ[DEVICES] = before


def check_node(taken: Collection[str]) -> None:
    """Checks that the node of this process, which is connected, gives away none of the ranks' GPUs.

    Args:
        taken: GPUs of the ranks, as in CUDA_VISIBLE_DEVICES.

    Raises:
        ValueError: it does. DesktopError: others hold its GPUs, so that it does not say which they are.
    """
    here = ray.get_runtime_context().get_node_id()
    (count,) = (node["Resources"].get("GPU", 0) for node in ray.nodes() if node["NodeID"] == here)
    if not taken or not count:
        return
    fix = f"start Ray on this machine with {DEVICES} set to the other GPUs, or with --num-gpus=0"
    place = NodeAffinitySchedulingStrategy(here, soft=False)
    asked = ray.remote(_visible).options(num_cpus=0, num_gpus=count, scheduling_strategy=place).remote()
    try:
        shared = [gpu for gpu in ray.get(asked, timeout=_ANSWER_SECONDS) if gpu in taken]
    except GetTimeoutError as error:
        ray.cancel(asked, force=True)
        raise DesktopError(
            FailureReason.hung,
            f"Ray's node on this machine gives {count:g} GPUs away, and did not say in {_ANSWER_SECONDS:g} s which, "
            f"since others hold them; the trainer's ranks have {', '.join(taken)}: {fix}",
        ) from error
    if shared:
        raise ValueError(
            f"Ray's node on this machine gives away the GPUs {', '.join(shared)}, which train.ranks has; {fix}"
        )


def _visible() -> list[str]:
    """The GPUs of a task."""
    return os.environ.get(DEVICES, "").split(",")
