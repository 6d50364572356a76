"""Configuration of the local policy: the tiny model's class and patches, wider, for screens of 640 x 368 pixels.

One image token represents 16 x 16 pixels, so a screen has 40 x 23 = 920 of them and is not resized; the ordinary image
processor downscales larger screens to at most as many pixels.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig

from bepa_torchrl.tiny.config import image_processor_config, tiny_config

SCREEN = (640, 368)  #: (width, height) in pixels, multiples of 16
HIDDEN, LAYERS = 128, 4
#: a screen is 40 tiles wide: the phases of tiles must differ at several scales
ROTARY_BASE = 100.0


def local_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """The model's configuration for a tokenizer of :mod:`bepa_torchrl.tiny.tokenizer`."""
    config = tiny_config(tokenizer, hidden=HIDDEN, layers=LAYERS)
    text: Any = config.text_config
    text.rope_parameters = text.rope_parameters | {"rope_theta": ROTARY_BASE}
    return config


def local_image_processor_config() -> dict[str, Any]:
    """``preprocessor_config.json``: the tiny model's with the pixel limit of :data:`SCREEN`."""
    largest = SCREEN[0] * SCREEN[1]
    config = image_processor_config()
    return config | {"max_pixels": largest, "size": config["size"] | {"longest_edge": largest}}
