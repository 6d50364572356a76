"""What a check is, and what several of them use. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bepa_torchrl.experiment.settings import Settings
from bepa_torchrl.methods import METHODS, Method

Check = Callable[[Settings], str | None]


def first_problem(settings: Settings, checks: Iterable[Check]) -> str | None:
    """What the first check that fails says; None: all pass."""
    return next((problem for check in checks if (problem := check(settings)) is not None), None)


def method_of(settings: Settings) -> Method:
    """The method of the run."""
    return METHODS[settings.algo.name]


def has_url(settings: Settings) -> bool:
    """Whether the rollouts come from a vLLM server that runs already."""
    return settings.policy.rollout == "vllm" and settings.policy.engine.url is not None


def raised(call: Callable[[], object], key: str = "") -> str | None:
    """The message of the ValueError that a component's own check raises, after the setting's name; None: none."""
    try:
        call()
    except ValueError as error:
        return f"{key}: {error}" if key else str(error)
    return None
