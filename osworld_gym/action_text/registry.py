"""The text protocols of policies by name, each imported when it is asked for.

``uitars`` (:mod:`osworld_gym.uitars`), ``opencua`` (:mod:`osworld_gym.opencua`) and ``qwen3vl``
(:mod:`osworld_gym.qwen3vl`) are read as the same :class:`osworld_gym.types.Action`.
"""

from __future__ import annotations

from osworld_gym.action_text.base import ActionText
from osworld_gym.extensions import Registry

#: name → protocol
ACTION_TEXTS: Registry[ActionText] = Registry(
    "osworld_gym.action_texts",
    {
        "uitars": "osworld_gym.action_text.uitars:UITARS",
        "opencua": "osworld_gym.action_text.opencua:OPENCUA",
        "qwen3vl": "osworld_gym.action_text.qwen3vl:QWEN3VL",
    },
    expects="an ActionText",
    accepts=lambda found: isinstance(found, ActionText),
)


def action_text(name: str) -> ActionText:
    """The protocol of that name.

    Raises:
        ValueError: an unknown name.
    """
    if name not in ACTION_TEXTS:
        raise ValueError(f"action_text: expected one of {', '.join(ACTION_TEXTS)}; got {name!r}")
    return ACTION_TEXTS[name]


def check_preset(name: str, preset: str) -> None:
    """Checks that a protocol has a preset.

    Raises:
        ValueError: an unknown protocol, or a preset that is not its own.
    """
    known = action_text(name).presets
    if preset not in known:
        raise ValueError(f"action_text={name} has the presets {', '.join(known)}; got preset={preset!r}")
