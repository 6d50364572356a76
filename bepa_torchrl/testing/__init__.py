"""Test doubles and checks for users of the package: scripted policies, a small real model, checks of policies.

These are no mocks: the lamp desktop runs real episodes, and the small model is a real Qwen2.5-VL. See also
:mod:`osworld_gym.testing`.
"""

from bepa_torchrl.testing.contract import check_learner, check_renderer, check_sampler
from bepa_torchrl.testing.learner import ScriptedLearner
from bepa_torchrl.testing.object_store import check_object_store
from bepa_torchrl.testing.scripted import (
    DONE,
    PRESS,
    LampDesktop,
    LampEnv,
    ScriptedPolicy,
    SeedKey,
    lamp_task,
    lamp_vector,
    summary,
)
from bepa_torchrl.testing.small_model import picture, small_checkpoint

__all__ = [
    "DONE",
    "PRESS",
    "LampDesktop",
    "LampEnv",
    "ScriptedLearner",
    "ScriptedPolicy",
    "SeedKey",
    "check_learner",
    "check_object_store",
    "check_renderer",
    "check_sampler",
    "lamp_task",
    "lamp_vector",
    "picture",
    "small_checkpoint",
    "summary",
]
