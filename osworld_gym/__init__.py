"""osworld_gym: OSWorld tasks on fast desktops, for any RL code. Importing it does not import torch."""

from gymnasium.envs.registration import register as _register
from gymnasium.envs.registration import registry as _registry

from osworld_gym.errors import DesktopError, FailureReason, OSWorldGymError, ParseError, TaskError
from osworld_gym.types import Action, PromptContext, Screenshot, StepResult, StopReason, Verdict

__version__ = "0.1.0"
__all__ = [
    "Action",
    "DesktopError",
    "FailureReason",
    "OSWorldGymError",
    "ParseError",
    "PromptContext",
    "Screenshot",
    "StepResult",
    "StopReason",
    "TaskError",
    "Verdict",
]

# gymnasium.make("osworld_gym:OSWorld-v0", provider="sim") imports this module and expects the name to be registered
if "OSWorld-v0" not in _registry:
    _register(id="OSWorld-v0", entry_point="osworld_gym.gymnasium_env:OSWorldGymnasiumEnv")
