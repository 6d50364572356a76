"""A batch of desktops as one TorchRL environment. The only folder of the package that imports torch."""

from osworld_gym.extras import require_extra

try:
    from osworld_gym.torchrl_env.environment import EXAMPLE_ACTION, OSWorldEnv
    from osworld_gym.torchrl_env.memmap_text import keep_text_in_memmap_storages
    from osworld_gym.torchrl_env.variable_length import VariableLength
except ModuleNotFoundError:
    require_extra("torchrl", "osworld_gym.torchrl_env")
    raise

__all__ = ["EXAMPLE_ACTION", "OSWorldEnv", "VariableLength"]

keep_text_in_memmap_storages()
