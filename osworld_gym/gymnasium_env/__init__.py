"""One desktop as a Gymnasium environment, and the space of its texts."""

from osworld_gym.gymnasium_env.environment import OSWorldGymnasiumEnv
from osworld_gym.gymnasium_env.text_space import AnyText

__all__ = ["AnyText", "OSWorldGymnasiumEnv"]
