"""Configuration of the local policy: the tiny model's class, wider, for screens of 640 x 360 pixels.

One image token represents 20 x 20 pixels, the grid on which the suite ``varied`` lays out windows and menus, so a
screen has 32 x 18 = 576 of them and is not resized; the ordinary image processor downscales larger screens to at most
as many pixels.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig

from bepa_torchrl.testing.tiny_config import image_processor_config, tiny_config

SCREEN = (640, 360)  #: (width, height) in pixels, multiples of 20
PATCH = 10  #: side of a patch in pixels; 2 x 2 patches are one image token
HIDDEN, LAYERS = 128, 4
VISION_HIDDEN, VISION_INTERMEDIATE, VISION_HEADS = 96, 256, 3
#: side in pixels of the squares in which patches see each other; over the whole screen a step costs 1.6 times as much
WINDOW = 160
#: Most pairs of a head's dimensions hardly turn over the 200 positions between a word and the screen, so that attention
#: can compare a word with what a tile shows. With the tiny model's base every pair turns by radians, and it cannot.
ROTARY_BASE = 4000.0
ROTARY_SECTIONS = (0, 3, 13)  #: pairs of dimensions that turn with time, height and width


def local_config(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    """The model's configuration for a tokenizer of :mod:`bepa_torchrl.testing.tiny_tokenizer`."""
    config = tiny_config(tokenizer, hidden=HIDDEN, layers=LAYERS)
    text: Any = config.text_config
    text.rope_parameters = text.rope_parameters | {"rope_theta": ROTARY_BASE, "mrope_section": list(ROTARY_SECTIONS)}
    vision: Any = config.vision_config
    vision.patch_size, vision.window_size, vision.fullatt_block_indexes = PATCH, WINDOW, []
    vision.hidden_size, vision.intermediate_size, vision.num_heads = VISION_HIDDEN, VISION_INTERMEDIATE, VISION_HEADS
    return config


def local_image_processor_config() -> dict[str, Any]:
    """``preprocessor_config.json``: the tiny model's with the patches and the pixel limit of this one."""
    largest = SCREEN[0] * SCREEN[1]
    config = image_processor_config()
    sizes = config["size"] | {"longest_edge": largest}
    return config | {"patch_size": PATCH, "max_pixels": largest, "size": sizes}
