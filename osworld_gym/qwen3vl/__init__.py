"""Qwen3-VL's prompts, and its responses: calls of the tool ``computer_use``, with points in thousandths."""

from osworld_gym.qwen3vl.format import format_response
from osworld_gym.qwen3vl.parse import parse, thought_of
from osworld_gym.qwen3vl.prompt import PRESETS, build_messages

__all__ = ["PRESETS", "build_messages", "format_response", "parse", "thought_of"]
