"""OpenCUA's model on transformers' Qwen2.5-VL classes, without the checkpoint's Python code.

OpenCUA-7B is Qwen2.5-VL-7B with ordinary one-dimensional rotary positions: every token, also of an image, advances the
position by 1. Its checkpoint wraps a ``Qwen2ForCausalLM`` (``language_model.``) and Qwen2.5-VL's vision tower
(``vision_tower.``), and ``config.json`` has ``model_type`` ``opencua``. Sources: the model card of xlangai/OpenCUA-7B,
and ``vllm/model_executor/models/opencua.py`` in vllm-project/vllm.

The names are mapped when weights are read and, by transformers, mapped back when they are saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageTextToText,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLModel,
)
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig, Qwen2_5_VLVisionConfig

MODEL_TYPE = "opencua"
#: the token of an image, one per merged patch
IMAGE_TOKEN = "<|media_placeholder|>"
#: name in the checkpoint, as a regular expression → name in the model
WEIGHT_NAMES = {
    r"^vision_tower\.": "model.visual.",
    r"^language_model\.model\.": "model.language_model.",
    r"^language_model\.lm_head\.": "lm_head.",
}


class OpenCUATextConfig(Qwen2_5_VLTextConfig):
    """The decoder's part of ``config.json``, that of a Qwen2."""

    model_type = "qwen2"
    default_theta = 10_000.0  # these three as in Qwen2Config: config.json may leave out a default

    rms_norm_eps: float = 1e-6
    bos_token_id: int | None = None
    eos_token_id: int | None = None


class OpenCUAConfig(Qwen2_5_VLConfig):
    """``config.json`` of an OpenCUA checkpoint; ``image_token_id`` is its ``media_placeholder_token_id``."""

    model_type = MODEL_TYPE
    sub_configs = {"vision_config": Qwen2_5_VLVisionConfig, "text_config": OpenCUATextConfig}  # noqa: RUF012

    media_placeholder_token_id: int = 151664

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        self.image_token_id = self.media_placeholder_token_id


class OpenCUAModel(Qwen2_5_VLModel):
    """Qwen2.5-VL's model with one-dimensional positions."""

    config_class = OpenCUAConfig

    def __init__(self, config: OpenCUAConfig) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        text: Any = config.text_config
        # all frequencies turn with the first of the three axes
        self.language_model.rotary_emb.mrope_section = [text.hidden_size // text.num_attention_heads // 2]

    def get_rope_index(
        self, input_ids: Tensor, *_: Any, attention_mask: Tensor | None = None, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Positions int64 ``[3, B, T]``, equal on the three axes, 0 at padding; offsets of later ones, 0 ``[B, 1]``."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.to(input_ids.device)
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return positions.expand(3, -1, -1), torch.zeros_like(input_ids[:, :1])


class OpenCUAForConditionalGeneration(Qwen2_5_VLForConditionalGeneration):
    """OpenCUA with its output head."""

    config_class = OpenCUAConfig

    def __init__(self, config: OpenCUAConfig) -> None:
        super(Qwen2_5_VLForConditionalGeneration, self).__init__(config)
        self.model = OpenCUAModel(config)
        text: Any = config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]


AutoConfig.register(MODEL_TYPE, OpenCUAConfig)
AutoModelForImageTextToText.register(OpenCUAConfig, OpenCUAForConditionalGeneration)
register_checkpoint_conversion_mapping(
    MODEL_TYPE, [WeightRenaming(source, target) for source, target in WEIGHT_NAMES.items()]
)
