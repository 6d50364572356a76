"""A checkpoint of the local policy's configuration with random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from bepa_torchrl.testing.tiny_tokenizer import train_tokenizer
from recipes.tiny.checkpoint import write_checkpoint
from recipes.tiny_local.config import SCREEN, local_config, local_image_processor_config

WORDS = "Thought: click Wired\nAction: click(start_box='<|box_start|>(72,40)<|box_end|>')"


def random_checkpoint(folder: Path) -> Path:
    """Writes it with the files of the shipped one; returns the folder."""
    tokenizer = train_tokenizer([*map(str, range(max(SCREEN))), *[WORDS] * 3])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2_5_VLForConditionalGeneration(local_config(tokenizer))
    write_checkpoint(folder, model, tokenizer, {}, image_processor=local_image_processor_config())
    return folder
