"""BEPA (Bi-level Expert-to-Policy Assimilation) on TorchRL. Public names, imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bepa_torchrl.cache import TaskTraceCache
    from bepa_torchrl.losses import BEPALoss
    from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
    from bepa_torchrl.rollout.group_rows import GroupRows
    from bepa_torchrl.rollout.trace_replacement import TraceReplacement
    from bepa_torchrl.training.trainer import BEPATrainer

__all__ = ["BEPALoss", "BEPATrainer", "GroupRolloutCollector", "GroupRows", "TaskTraceCache", "TraceReplacement"]

_MODULES = {
    "BEPALoss": "losses",
    "BEPATrainer": "training.trainer",
    "GroupRolloutCollector": "rollout.group_collector",
    "GroupRows": "rollout.group_rows",
    "TaskTraceCache": "cache",
    "TraceReplacement": "rollout.trace_replacement",
}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that importing the package (and the command line) stays fast."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from osworld_gym.extras import require_extra

    require_extra("bepa", f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
