"""Small real models with random weights (not the tiny model that is shipped)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from bepa_torchrl.policies.transformers.checkpoint import Checkpoint
from bepa_torchrl.testing.tiny_config import MERGE, PATCH, image_processor_config, tiny_config, token_id
from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer

CORPUS = (
    "Thought: click mute\nAction: click(start_box='<|box_start|>(72,40)<|box_end|>')",
    "Thought: type it\nAction: type(content='hello world')",
    "open the trash and empty it\nLast: none",
)


def small_checkpoint(
    seed: int = 0, spread: float = 0.2, *, family: str = "qwen2_5_vl", corpus: Sequence[str] = CORPUS
) -> Checkpoint:
    """Random weights, large enough that logits and image features matter.

    Args:
        seed: the seed of the weights.
        spread: standard deviation of matrices.
        family: ``qwen2_5_vl`` or ``qwen3_vl``.
        corpus: texts whose words become tokens.

    Raises:
        KeyError: another family.
    """
    torch.manual_seed(seed)
    tokenizer = train_tokenizer(corpus)
    model = _MODELS[family](tokenizer)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, spread)
    ends = [tokenizer.get_vocab()[t] for t in ("<|im_end|>", "<|endoftext|>")]
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1])
    config = image_processor_config()
    names = ("patch_size", "merge_size", "temporal_patch_size", "size", "image_mean", "image_std")
    processor = Qwen2VLImageProcessorPil(**{name: config[name] for name in names})
    return Checkpoint(model.eval(), tokenizer, processor, tuple(ends))


def _qwen3_vl(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLForConditionalGeneration:
    """Grouped heads, two deepstack levels, and a position embedding that is interpolated."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,  # as in released checkpoints; vLLM reads it, transformers does not
        },
        "bos_token_id": token_id(tokenizer, "<|endoftext|>"),
        "eos_token_id": token_id(tokenizer, "<|im_end|>"),
    }
    vision = {
        "depth": 3,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 1],
        "out_hidden_size": 96,
    }
    names = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
    names |= {"vision_start_token_id": "vision_start", "vision_end_token_id": "vision_end"}
    ids: dict[str, Any] = {key: token_id(tokenizer, f"<|{name}|>") for key, name in names.items()}
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision, **ids))


_MODELS = {
    "qwen2_5_vl": lambda tokenizer: Qwen2_5_VLForConditionalGeneration(tiny_config(tokenizer)),
    "qwen3_vl": _qwen3_vl,
}


def picture(seed: int, size: tuple[int, int] = (128, 128)) -> bytes:
    """A PNG of random 16-pixel tiles, ``size`` = (width, height)."""
    width, height = size
    tiles = np.random.default_rng(seed).integers(0, 256, (-(-height // 16), -(-width // 16), 3), dtype=np.uint8)
    pixels = np.kron(tiles, np.ones((16, 16, 1), dtype=np.uint8))[:height, :width]
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return buffer.getvalue()
