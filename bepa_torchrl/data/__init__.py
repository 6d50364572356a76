"""Data shared by all modules: tensordict keys, training rows, prompts and responses, seeds.

The names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from osworld_gym.exports import lazy_names

if TYPE_CHECKING:
    from bepa_torchrl.data.prompt import Prompt, Response
    from bepa_torchrl.data.seeding import Stream, derive_seed, desktop_seed, episode_key
    from bepa_torchrl.data.step_rows import groups_of

__all__ = [
    "Prompt",
    "Response",
    "Stream",
    "derive_seed",
    "desktop_seed",
    "episode_key",
    "groups_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "prompt": (
            "Prompt",
            "Response",
        ),
        "seeding": (
            "Stream",
            "derive_seed",
            "desktop_seed",
            "episode_key",
        ),
        "step_rows": ("groups_of",),
    },
)
