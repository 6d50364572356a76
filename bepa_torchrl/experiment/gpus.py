"""Which GPUs of this machine the ranks of a run have, and that an engine beside them has others. Imports no torch."""

from __future__ import annotations

import os

from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.experiment.started_by import is_rank

_DEVICES = "CUDA_VISIBLE_DEVICES"


def trainer_gpus(settings: Settings) -> tuple[str, ...]:
    """The GPUs of the ranks on this machine, as in CUDA_VISIBLE_DEVICES: the first ones that this process sees."""
    ranks = int(os.environ["LOCAL_WORLD_SIZE"]) if is_rank() else settings.train.ranks
    visible = os.environ.get(_DEVICES)
    return tuple(map(str, range(ranks))) if visible is None else _names(visible)[:ranks]


def visible_gpus() -> tuple[str, ...]:
    """All GPUs that this process sees, as in CUDA_VISIBLE_DEVICES. Imports torch."""
    import torch

    visible = os.environ.get(_DEVICES)
    return tuple(map(str, range(torch.cuda.device_count()))) if visible is None else _names(visible)


def engine_gpus(settings: Settings) -> str | None:
    """An engine that samples while the ranks train has other GPUs than they.

    In lock-step an engine takes turns with rank 0, whose GPU it shares. Engines in a Ray cluster get GPUs from Ray
    (:mod:`bepa_torchrl.scale.rollouts.ray_gpus`), those of another cluster from ``bepa rollouts``.
    """
    policy, cluster = settings.policy, settings.cluster
    beside = settings.collect.mode == "async" and cluster.address is None and cluster.listen is None
    if settings.train.ranks == 1 or policy.device == "cpu" or not beside:
        return None
    if policy.rollout != "vllm" or policy.engine.url is not None:
        return None
    taken, devices = trainer_gpus(settings), policy.engine.devices
    shared = taken[:1] if devices is None else [gpu for gpu in _names(devices) if gpu in taken]
    if not shared:
        return None
    given = "policy.engine.devices is not set, so that the engine" if devices is None else "the engine"
    return (
        f"{given} would take the GPU {', '.join(shared)} of train.ranks={settings.train.ranks}, which has "
        f"{', '.join(taken)}; set policy.engine.devices to other GPUs, or lower train.ranks"
    )


def engine_has_own_gpus(settings: Settings, ranks: int) -> bool:
    """Whether the engine has none of the GPUs of ``ranks`` ranks: others of this machine, Ray's, or another machine's.

    GPUs are numbered from 0, as without CUDA_VISIBLE_DEVICES: a plan is for another machine.
    """
    from bepa_torchrl.scale.engine.weight_sync.choice import gpus_of

    engine, cluster = settings.policy.engine, settings.cluster
    if engine.url is not None:
        return True
    if settings.collect.mode == "async" and (cluster.listen is not None or cluster.gpus_per_replica > 0):
        return True
    first = settings.policy.device.partition(":")[2]
    index = int(first) if first and ranks == 1 else 0
    taken = {str(index + rank) for rank in range(ranks)}
    return taken.isdisjoint(gpus_of(index, engine.devices, engine.arguments, {})[1])


def _names(devices: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in devices.split(",") if name.strip())
