"""Whether the device that the settings name can be used on this machine."""

from __future__ import annotations

import torch


def check_device(name: str) -> None:
    """Checks ``policy.device``; uses no GPU's memory.

    Raises:
        ValueError: torch knows no such device, or it finds no GPU of that number.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"policy.device={name}: expected cpu, cuda or cuda:N") from error
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        found = f"torch {torch.__version__} finds {count} GPUs here"
        fix = "policy.device=cpu, another number, or a torch that goes with the GPU's driver"
        raise ValueError(f"policy.device={name}: {found}; fix: {fix}")
