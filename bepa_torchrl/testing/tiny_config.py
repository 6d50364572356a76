"""The tiny model's configuration: UI-TARS-1.5-7B's class (``Qwen2_5_VLForConditionalGeneration``), 0.5 M parameters.

The rotary base is 10, so that a screen's eight columns and rows differ in phase at every frequency (with 10,000 the
low frequencies hardly change). One image token represents 16 x 16 pixels (patch 8, merge 2): 64 tokens for the
simulated 128 x 128 screen. vLLM requires head dimension 32 and the end tokens in ``text_config``.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig

PATCH = 8
MERGE = 2
#: 256 x 144, the largest 16:9 image whose coordinates are single tokens (0..255); 128 x 128 is not resized
MAX_PIXELS = 256 * 144
MIN_PIXELS = 64 * 64
#: far below the usual 10,000: a screen is only eight tiles wide, and their phases must differ
ROTARY_BASE = 10.0
#: standard deviation of the initial weights, for a width of about 100
INIT = 0.05


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """The id of one token."""
    number = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(number, int)
    return number


def tiny_config(tokenizer: PreTrainedTokenizerFast, *, hidden: int = 96, layers: int = 3) -> Qwen2_5_VLConfig:
    """The model's configuration for a tokenizer of :mod:`bepa_torchrl.testing.tiny_tokenizer`.

    Args:
        tokenizer: defines the vocabulary size and the ids of the image and end tokens.
        hidden: width of the language model, a multiple of 32.
        layers: number of its layers.
    """
    ids = {name: token_id(tokenizer, f"<|{name}|>") for name in _TOKENS}
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 8 * hidden // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 32,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROTARY_BASE, "mrope_section": [4, 6, 6]},
        "initializer_range": INIT,
        "tie_word_embeddings": True,
        "bos_token_id": ids["endoftext"],
        "eos_token_id": ids["im_end"],
        "pad_token_id": ids["endoftext"],
        "dtype": "float32",
    }
    vision: dict[str, Any] = {
        "depth": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "window_size": 128,
        "fullatt_block_indexes": [0],
        "out_hidden_size": hidden,
        "initializer_range": INIT,
        "dtype": "float32",
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
        tie_word_embeddings=True,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        dtype="float32",
    )


_TOKENS = ("endoftext", "im_end", "image_pad", "video_pad", "vision_start", "vision_end")


def image_processor_config() -> dict[str, Any]:
    """``preprocessor_config.json``: Qwen2-VL's image processor with this model's patch and pixel limits."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
