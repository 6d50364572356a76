"""Memory, arithmetic and bandwidth of GPUs, from NVIDIA's data sheets (dense rates, without structured sparsity)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from osworld_gym.errors import did_you_mean

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Args:
        memory: bytes, as ``nvidia-smi`` reports them (a "141 GB" H200 has 143,771 MiB).
        flops: dense bfloat16 operations per second.
        bandwidth: bytes per second of its memory.
    """

    memory: int
    flops: float
    bandwidth: float


GPUS = MappingProxyType(
    {
        "rtx_4090": Gpu(24_564 * _MIB, 165e12, 1.008e12),
        "l40s": Gpu(46_068 * _MIB, 362e12, 0.864e12),
        "a100_40": Gpu(40_960 * _MIB, 312e12, 1.555e12),
        "a100_80": Gpu(81_920 * _MIB, 312e12, 2.039e12),
        "h100": Gpu(81_559 * _MIB, 989e12, 3.35e12),
        "h200": Gpu(143_771 * _MIB, 989e12, 4.8e12),
        "b200": Gpu(183_359 * _MIB, 2250e12, 8.0e12),
    }
)


def gpu(name: str) -> Gpu:
    """A GPU by name.

    Raises:
        ValueError: an unknown name.
    """
    if name not in GPUS:
        raise ValueError(f"unknown GPU {name!r}{did_you_mean(name, GPUS)}; known: {', '.join(GPUS)}")
    return GPUS[name]
