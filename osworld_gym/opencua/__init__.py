"""OpenCUA's prompts, and its responses: pyautogui calls in a code block, read as the actions of the UI-TARS table."""

from osworld_gym.opencua.format import format_response
from osworld_gym.opencua.parse import parse, thought_of
from osworld_gym.opencua.prompt import PRESETS, build_messages

__all__ = ["PRESETS", "build_messages", "format_response", "parse", "thought_of"]
