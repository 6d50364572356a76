"""LoRA adapters on the decoder's linear layers, by transformers' PEFT integration (``model.add_adapter``).

A layer's weight ``W`` is frozen, and ``W x`` becomes ``W x + alpha / rank * B A x`` (Hu et al. 2022, arXiv:2106.09685,
section 4.1). ``B`` starts at 0, so that the policy starts as the checkpoint. There is no dropout: log-probs of training
must be those of sampling. Embeddings, head and vision tower have no adapters; all of them are frozen.

The weights of an adapted model are given to others merged, ``W + alpha / rank * B A`` under the checkpoint's names, so
that any rollout engine and any reader of checkpoints can take them; vLLM can get the adapters alone
(:mod:`bepa_torchrl.scale.engine.weight_sync.adapters`). The sum is computed in float32 and rounded to the
weights' dtype; in bfloat16 a merged model's log-probs therefore differ slightly from those of the adapted one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bepa_torchrl.policies.finite import not_finite
from osworld_gym.extras import require_extra

#: the linear layers of Qwen2-VL's, Qwen2.5-VL's and Qwen3-VL's decoders
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
#: the decoder's modules; the vision tower has layers of the same names
DECODER = "model.language_model."

_NAME = "default"  #: PEFT's name for the adapter
_SAVED_PREFIX = "base_model.model."  #: of the names in PEFT's files
_BASE = ".base_layer"
_A, _B = f".lora_A.{_NAME}.weight", f".lora_B.{_NAME}.weight"


@dataclass(frozen=True, slots=True)
class Lora:
    """LoRA adapters.

    Args:
        rank: rows of ``A`` and columns of ``B``, at least 1.
        alpha: ``B A`` is multiplied by ``alpha / rank``.
        targets: last parts of the names of the decoder's adapted linear layers.
        adapter: folder of adapters to start from, as :func:`save_adapter` or PEFT writes it; None: ``B`` is 0.
    """

    rank: int
    alpha: int
    targets: tuple[str, ...] = TARGETS
    adapter: str | os.PathLike[str] | None = None


def add_lora(model: Any, lora: Lora, *, seed: int) -> None:
    """Adds adapters to a model and freezes all other parameters.

    Args:
        model: the conditional-generation model, without adapters.
        lora: the adapters.
        seed: seed of ``A``; the global random state is not changed.

    Raises:
        MissingExtraError: PEFT is not installed.
        ValueError: a target is no linear layer of the decoder, or ``lora.adapter`` does not fit.
    """
    require_extra("lora", "policy.lora")
    from peft import LoraConfig

    linear = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if name.startswith(DECODER) and isinstance(module, torch.nn.Linear)
    }
    if unknown := [target for target in lora.targets if target not in linear]:
        raise ValueError(
            f"policy.lora.targets: {unknown[0]!r} is no linear layer of the decoder; it has {', '.join(sorted(linear))}"
        )
    if not lora.targets:
        raise ValueError(f"policy.lora.targets: expected at least one of {', '.join(sorted(linear))}, got none")
    names = "|".join(map(re.escape, lora.targets))
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=rf"{re.escape(DECODER)}.*\.({names})",
        lora_dropout=0.0,
        bias="none",
    )
    training = model.training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.add_adapter(config, adapter_name=_NAME)
    model.train(training)
    if lora.adapter is not None:
        load_adapter(model, lora.adapter)


def adapter_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """The adapters' parameters by name; empty for a model without adapters."""
    return {name: weight for name, weight in model.named_parameters() if name.endswith((_A, _B))}


def adapter_rank(model: Any) -> int:
    """The rank of a model's adapters."""
    return int(model.peft_config[_NAME].r)


def base_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """The weights without adapters, not merged, under the checkpoint's names; they share memory with the model's."""
    return {_plain(name): weight for name, weight in model.state_dict().items() if not name.endswith((_A, _B))}


def merged_weights(model: torch.nn.Module, weights: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
    """(name, detached tensor) of every weight under the checkpoint's names, adapters merged, one at a time.

    Adapted weights are copies, the others share memory with the given ones.

    Args:
        model: with or without adapters.
        weights: its state, whole; None: the model's own tensors. Each tensor is read when it is needed.
    """
    weights = model.state_dict() if weights is None else weights
    for name in weights:
        if name.endswith((_A, _B)):
            continue
        weight = weights[name]
        layer = name.removesuffix(f"{_BASE}.weight")
        if layer != name:
            scaling: float = model.get_submodule(layer).scaling[_NAME]  # type: ignore[assignment, index]
            delta = weights[layer + _B].float() @ weights[layer + _A].float()
            weight = torch.add(weight.float(), delta, alpha=scaling).to(weight.dtype)
        yield _plain(name), weight


@contextmanager
def without_adapters(model: Any) -> Iterator[None]:
    """During the block the model is its base weights; it has adapters."""
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()


@torch.no_grad()
def reset_adapters(model: torch.nn.Module) -> None:
    """Sets every ``B`` to 0: the model is its base weights."""
    for name, weight in adapter_weights(model).items():
        if name.endswith(_B):
            weight.zero_()


def save_merged(model: Any, folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes config and merged weights, which ``from_pretrained`` reads without PEFT, into an existing folder.

    Args:
        model: with adapters.
        folder: exists.
        weights: already merged, under the checkpoint's names, on the CPU.
    """
    # transformers writes a model with this flag as adapters alone
    flag, model._hf_peft_config_loaded = model._hf_peft_config_loaded, False
    try:
        model.save_pretrained(folder, state_dict=dict(weights))
    finally:
        model._hf_peft_config_loaded = flag


def save_adapter(model: Any, folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes the adapters in PEFT's format (adapter_config.json, adapter_model.safetensors) into a folder.

    Args:
        model: with adapters.
        folder: exists.
        weights: the adapters' whole weights by parameter name, on the CPU.
    """
    model.save_pretrained(folder, state_dict=dict(weights))


@torch.no_grad()
def load_adapter(model: Any, folder: str | os.PathLike[str]) -> None:
    """Replaces the adapters' weights by those of a folder in PEFT's format.

    Raises:
        ValueError: the folder cannot be read, its adapters have another rank, alpha or targets, or are not
            finite; nothing is changed.
    """
    path, own = Path(folder), adapter_weights(model)
    try:
        config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        saved = load_file(path / "adapter_model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"policy.lora.adapter={path}: expected adapters in PEFT's format: {error}") from error
    ours = model.peft_config[_NAME]
    scalings = [(name, config.get(name), getattr(ours, name)) for name in ("r", "lora_alpha", "use_rslora", "use_dora")]
    if different := [f"{name}={theirs} instead of {mine}" for name, theirs, mine in scalings if (theirs or 0) != mine]:
        raise ValueError(f"policy.lora.adapter={path}: other adapters than policy.lora's: {', '.join(different)}")
    weights = {_loaded_name(name): weight for name, weight in saved.items()}
    if misfits := sorted(
        name
        for name in weights.keys() | own.keys()
        if name not in weights or name not in own or weights[name].shape != own[name].shape
    ):
        raise ValueError(
            f"policy.lora.adapter={path}: {len(misfits)} weights do not fit, such as {misfits[0]}; "
            "set policy.lora.targets as for these adapters, and the checkpoint that they were trained on"
        )
    if bad := not_finite(weights.items()):
        raise ValueError(
            f"policy.lora.adapter={path}: {len(bad)} weights have elements that are not finite, such as {bad[0]}; "
            "use those of an earlier checkpoint"
        )
    for name, weight in own.items():
        weight.copy_(weights[name])


def _plain(name: str) -> str:
    """A weight's name in the checkpoint."""
    return name.replace(f"{_BASE}.", ".")


def _loaded_name(name: str) -> str:
    """The parameter's name of a weight in PEFT's file, which leaves out the adapter's name."""
    plain = name.removeprefix(_SAVED_PREFIX)
    return re.sub(r"\.lora_([AB])\.weight$", rf".lora_\1.{_NAME}.weight", plain)
