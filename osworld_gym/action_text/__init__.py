"""The text protocols of policies by name: how prompts are written, and how responses are read."""

from osworld_gym.action_text.base import ActionText
from osworld_gym.action_text.registry import ACTION_TEXTS, action_text, check_preset

__all__ = ["ACTION_TEXTS", "ActionText", "action_text", "check_preset"]
