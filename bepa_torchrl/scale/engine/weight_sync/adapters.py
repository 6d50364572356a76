"""LoRA adapters that an engine gets without the weights below them: whether it can, and the folder that it reads.

The engine keeps the checkpoint's weights; each version of the adapters has an id of its own there, so that neither a
stale adapter nor keys and values of another version can be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from bepa_torchrl.policies.transformers.checkpoint import no_progress_bars
from bepa_torchrl.policies.transformers.lora import DECODER, adapter_rank, adapter_weights, save_adapter
from bepa_torchrl.scale.engine.arguments import LORA_RANKS
from osworld_gym.atomic import new_folder

#: how adapters reach an engine: ``separate``, alone; ``merged``, with all weights; ``auto``, alone where possible
AdapterSync: TypeAlias = Literal["auto", "separate", "merged"]


@dataclass(frozen=True, slots=True)
class EngineAdapters:
    """Which adapters an engine must be able to take.

    Args:
        rank: the rank of the adapters.
        targets: last parts of the names of the adapted linear layers.
    """

    rank: int
    targets: tuple[str, ...]


def engine_adapters(model: torch.nn.Module, sync: AdapterSync) -> EngineAdapters | None:
    """The adapters that an engine gets alone; None: all weights are sent, adapters merged into them.

    They are sent alone if nothing but adapters is trained, all of them in the decoder, of at most vLLM's largest rank.

    Raises:
        ValueError: ``separate``, but they cannot be sent alone.
    """
    if sync == "merged":
        return None
    reason = _reason_to_merge(model)
    if reason is None:
        layers = {name.split(".lora_", 1)[0].rsplit(".", 1)[-1] for name in adapter_weights(model)}
        return EngineAdapters(adapter_rank(model), tuple(sorted(layers)))
    if sync == "separate":
        raise ValueError(f"policy.engine.adapters=separate: {reason}; set policy.engine.adapters=merged")
    return None


def _reason_to_merge(model: torch.nn.Module) -> str | None:
    adapters = adapter_weights(model)
    if not adapters:
        return "the policy has no adapters (policy.lora.rank)"
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if others := sorted(trained - adapters.keys()):
        return f"weights without adapters are trained, too, such as {others[0]}"
    if outside := [name for name in adapters if not name.startswith(DECODER)]:
        return f"vLLM has adapters in the decoder only, not at {outside[0]}"
    if adapter_rank(model) > LORA_RANKS[-1]:
        return f"vLLM's adapters have at most rank {LORA_RANKS[-1]}, policy.lora.rank is {adapter_rank(model)}"
    return None


def write_adapter(folder: Path, weights: Mapping[str, Tensor], *, model: Any, dtype: torch.dtype) -> Path:
    """Writes adapters in PEFT's format, atomically.

    Args:
        folder: does not exist yet.
        weights: the adapters' weights by parameter name.
        model: the transformers model with these adapters.
        dtype: the weights are cast to it, as the engine does.

    Raises:
        OSError: the disk is full.
    """
    copies = {name: weight.detach().to("cpu", dtype, copy=True).contiguous() for name, weight in weights.items()}
    with new_folder(folder) as target, no_progress_bars():
        save_adapter(model, target, copies)
    return folder
