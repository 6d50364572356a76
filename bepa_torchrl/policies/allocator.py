"""The setting of torch's CUDA allocator for batches of changing sizes, unless the user has chosen one.

Micro-batches of 3,000 to 66,000 tokens alternate with key-value caches of other shapes. Segments that can grow
(``expandable_segments:True``) are used again for any of them, where blocks of fixed sizes would be left in pieces.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch

#: variables that torch reads once, when a process first uses CUDA
NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
#: set beside it, so that an inference engine, whose own memory pools it may not suit, starts without it
MARK = "BEPA_ALLOCATOR"
_GROWING = "expandable_segments:True"


def allocator_variables(device: torch.device | str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment variables to add for a process that trains on a device; none if the user has set one of them."""
    if torch.device(device).type != "cuda" or any(name in environment for name in NAMES):
        return {}
    return {NAMES[0]: _GROWING, MARK: "1"}


def set_allocator(device: torch.device | str) -> None:
    """Adds :func:`allocator_variables` to this process's environment; before it uses CUDA."""
    os.environ.update(allocator_variables(device, os.environ))


def chosen_here(environment: Mapping[str, str]) -> list[str]:
    """The variables that :func:`set_allocator` has added, here or in the process that started this one."""
    return [NAMES[0], MARK] if MARK in environment else []
