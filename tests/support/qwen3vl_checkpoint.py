"""A small random Qwen3-VL checkpoint on disk, whose tokenizer has the tool-call tokens of the published ones."""

from __future__ import annotations

from pathlib import Path

from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.testing import small_checkpoint
from osworld_gym.qwen3vl import format_response
from osworld_gym.qwen3vl.prompt import system_text
from osworld_gym.types import Action

TOOL_CALL = ("<tool_call>", "</tool_call>")  #: tokens that are not special, as in Qwen's tokenizer_config.json


def write_qwen3vl_checkpoint(folder: Path) -> Path:
    """Writes ``folder`` and returns it."""
    words = format_response("Click the mute button.", [Action("click", start=(72, 40)), Action("finished")])
    checkpoint = small_checkpoint(family="qwen3_vl", corpus=(system_text(), words))
    checkpoint.tokenizer.add_tokens(list(TOOL_CALL))
    checkpoint.model.resize_token_embeddings(len(checkpoint.tokenizer), mean_resizing=False)
    TransformersPolicy(checkpoint, action_text="qwen3vl", preset="official").save(folder)
    return folder
