"""A stand-in for the ray module, for one rollout service in this process: what is put is pickled, as Ray does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle


class StandInRay:
    """The functions that a :class:`~bepa_torchrl.scale.rollouts.ray_services.ServicePool` calls.

    Its actors do nothing, but take what they are given.
    """

    def __init__(self) -> None:
        self.put_values: list[Any] = []  #: what an actor would get

    def put(self, value: Any) -> Any:
        self.put_values.append(cloudpickle.loads(cloudpickle.dumps(value)))
        return self.put_values[-1]

    def get(self, value: Any, *, timeout: float | None = None) -> Any:
        del timeout
        return value

    def wait(self, values: Sequence[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        del num_returns, timeout
        return list(values), []

    def kill(self, actor: Any, *, no_restart: bool = True) -> None:
        del actor, no_restart

    def remote(self, **_options: Any) -> Callable[[type], _Class]:
        return lambda _kind: _Class()


class _Class:
    def options(self, **_options: Any) -> _Class:
        return self

    def remote(self, *_arguments: Any) -> _Actor:
        return _Actor()


class _Actor:
    def __getattr__(self, name: str) -> _Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Method()


class _Method:
    def options(self, **_options: Any) -> _Method:
        return self

    def remote(self, *arguments: Any) -> None:
        cloudpickle.dumps(arguments)
