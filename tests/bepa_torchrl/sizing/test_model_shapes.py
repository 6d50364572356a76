"""Parameter counts by formula equal those of transformers' models on the meta device."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen3VLConfig

from bepa_torchrl.policies.transformers.opencua.model import OpenCUAConfig
from bepa_torchrl.sizing.known_models import KNOWN, known_model
from bepa_torchrl.sizing.model import model_shape

TEXT = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 52,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
VISION = {
    "depth": 3,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 32,
}
SMALL_QWEN2_5 = {
    "text_config": TEXT,
    "vision_config": {
        **VISION,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    },
}
SMALL_QWEN3 = {
    "text_config": {
        **TEXT,
        "head_dim": 12,
    },
    "vision_config": {
        **VISION,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 2],
    },
}


def config_of(raw: dict[str, Any]) -> Any:
    kind = {"qwen2_5_vl": Qwen2_5_VLConfig, "qwen3_vl": Qwen3VLConfig, "opencua": OpenCUAConfig}[raw["model_type"]]
    return kind(**{key: value for key, value in raw.items() if key != "model_type"})


def counted(config: Any) -> tuple[int, int]:
    """Parameters of the whole model and of its vision tower."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
    return sum(p.numel() for p in model.parameters()), sum(p.numel() for p in model.model.visual.parameters())


@pytest.mark.parametrize("name", KNOWN)
def test_shipped_configurations_have_the_models_parameters(name: str) -> None:
    known = known_model(name)
    shape = model_shape(known.config)
    assert (shape.parameters, shape.vision.parameters) == counted(config_of(dict(known.config)))


def test_seven_billion() -> None:
    """The counts that Qwen2.5-VL-7B is published with; OpenCUA-7B has the same weights."""
    shape, other = (
        model_shape(known_model(name).config) for name in ("ByteDance-Seed/UI-TARS-1.5-7B", "xlangai/OpenCUA-7B")
    )
    assert (other.text, other.vision) == (shape.text, shape.vision)
    assert (shape.parameters, shape.text.parameters) == (8_292_166_656, 7_615_616_512)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("kind", "raw"), [(Qwen2_5_VLConfig, SMALL_QWEN2_5), (Qwen3VLConfig, SMALL_QWEN3)])
def test_small_shapes(kind: Any, raw: dict[str, Any], tied: bool) -> None:
    config = kind(**json.loads(json.dumps(raw)), tie_word_embeddings=tied)
    shape = model_shape(config.to_dict())
    assert (shape.parameters, shape.vision.parameters) == counted(config)


def test_another_family_is_refused() -> None:
    with pytest.raises(ValueError, match=r"type 'llama' are not known; expected one of qwen2_5_vl, qwen3_vl"):
        model_shape({"model_type": "llama"})
    with pytest.raises(ValueError, match="no vision_config"):
        model_shape({"model_type": "qwen2_5_vl"})
    broken = {"model_type": "qwen2_5_vl", "hidden_size": "wide", "vision_config": {}}
    with pytest.raises(ValueError, match="expected an integer hidden_size, got 'wide'"):
        model_shape(broken)
