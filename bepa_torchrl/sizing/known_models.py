"""Configurations of public models that ship with the package, so that a plan requires no download.

Each file of ``models/`` has the values of a repository's ``config.json`` and ``preprocessor_config.json`` that decide
sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from osworld_gym.errors import did_you_mean

_FILES = {
    "ByteDance-Seed/UI-TARS-1.5-7B": "ui_tars_1_5_7b",
    "Qwen/Qwen2.5-VL-3B-Instruct": "qwen2_5_vl_3b",
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2_5_vl_7b",
    "Qwen/Qwen3-VL-2B-Instruct": "qwen3_vl_2b",
    "Qwen/Qwen3-VL-8B-Instruct": "qwen3_vl_8b",
    "xlangai/OpenCUA-7B": "opencua_7b",
}
KNOWN = tuple(_FILES)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a plan reads of a model: ``config.json``, and the image processor's pixel limits."""

    config: Mapping[str, Any]
    min_pixels: int
    max_pixels: int

    @property
    def positions(self) -> int | None:
        """The longest prompt and response that the model takes, in tokens; None: the configuration does not say."""
        text = self.config.get("text_config") or self.config
        found = text.get("max_position_embeddings")
        return found if isinstance(found, int) else None


def known_model(repository: str) -> ModelFiles:
    """The files of a public model, by its Hugging Face repository.

    Raises:
        ValueError: its configuration does not ship with the package.
    """
    if repository not in _FILES:
        raise ValueError(
            f"the configuration of {repository} does not ship with the package"
            f"{did_you_mean(repository, KNOWN)}; known: {', '.join(KNOWN)}; otherwise name the folder of a checkpoint"
        )
    path = resources.files("bepa_torchrl.sizing").joinpath("models", f"{_FILES[repository]}.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    limits = data["image_processor"]
    return ModelFiles(data["config"], limits["min_pixels"], limits["max_pixels"])


def folder_model(folder: Path) -> ModelFiles:
    """The files of a checkpoint folder; its weights are not read.

    Raises:
        ValueError: a file is missing, is not JSON, or has no pixel limits.
    """
    config, processor = (_read(folder / name) for name in ("config.json", "preprocessor_config.json"))
    size = processor.get("size") or {}
    low = processor.get("min_pixels") or size.get("shortest_edge")
    high = processor.get("max_pixels") or size.get("longest_edge")
    if not isinstance(low, int) or not isinstance(high, int):
        raise ValueError(
            f"{folder / 'preprocessor_config.json'}: expected min_pixels and max_pixels, or size with shortest_edge "
            f"and longest_edge; got {low!r} and {high!r}"
        )
    return ModelFiles(config, low, high)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no such file; expected a checkpoint's folder") from error
    except ValueError as error:
        raise ValueError(f"{path}: expected JSON: {error}") from error
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(data).__name__}")
    return data
