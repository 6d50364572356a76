"""OSWorldGymnasiumEnv: one desktop as a Gymnasium environment, for any RL code."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from osworld_gym.episode import TRUNCATING, EpisodeOptions
from osworld_gym.errors import DesktopError
from osworld_gym.factory import Provider, check_retries, choose_tasks, desktop_factory
from osworld_gym.gymnasium_env.text_space import AnyText
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import StepResult, StopReason
from osworld_gym.vector import CALL_DEADLINE, DesktopVector

MAX_INSTRUCTION = (
    16_384  #: characters of an instruction in the observation space, or the suite's longest if it is longer
)
MAX_RESPONSE = 32_768  #: characters of a response in the action space; ``step`` accepts longer ones too

Observation = dict[str, Any]


class OSWorldGymnasiumEnv(gymnasium.Env[Observation, str]):
    """One desktop. The observation is a screenshot and an instruction, the action the model's response as text.

    Observations: ``{"screenshot": uint8 [H, W, 3], "instruction": str}``. Any string is an action, even one longer than
    ``action_space`` allows; one that cannot be parsed is a step that does nothing. The reward is 1.0 on the last step
    of a verified success, else 0.0.

    Works in ``SyncVectorEnv`` and ``AsyncVectorEnv`` of environments with one screen size, with and without shared
    memory: the texts of both spaces are :class:`~osworld_gym.gymnasium_env.AnyText`, in any script. (A
    ``gymnasium.spaces.Text`` would never change in ``AsyncVectorEnv``'s shared memory.) ``observations["instruction"]``
    is a tuple of str.

    ``info`` has ``task_id``, ``stop_reason`` ("" while the episode is running), ``score`` (the verifier's, in [0, 1],
    of which only 1 is rewarded; 0 until it has scored), ``success``, ``exhausted`` (the result exceeds the evaluators'
    limits: score 0), ``parse_error``, ``env_error`` and ``failure``. If ``env_error`` is True, the infrastructure
    failed (``failure`` is the message): the episode is truncated, and its reward must be masked.

    ``reset(seed=..., options={"task": id or Task})``: the seed determines task and screen; ``task`` overrides the task.

    Limit episodes by ``EpisodeOptions(max_steps=...)``, which verifies the last step. Gymnasium's ``TimeLimit`` (the
    ``max_episode_steps`` of ``gymnasium.make``) cuts an episode off unverified: with reward 0, whatever was done.

    Args:
        provider: a name of ``desktops.registry.PROVIDERS``, or a function that creates a desktop.
        suite: a suite, its name, or an OSWorld folder; None: the provider's default suite.
        split: split of the suite; ``all`` for every task. Tasks that this version does not support are left out.
        runnable: whether to leave out tasks that cannot run on this machine with this provider, too; a warning counts
            them by reason. Otherwise such a task is a TaskError when it is set up or scored.
        options: when an episode ends, and the pixel coordinates of the model's actions.
        provider_options: keyword arguments of the provider's class.
        deadline: seconds for one call on a blocking desktop.
        reset_retries: how often a failed reset is repeated, each time on a new desktop.
        warm: number of desktops kept ready in addition to the one in use, reset in advance.
        render_mode: ``rgb_array`` or None.

    Raises:
        ValueError: unknown provider or option, an argument out of range, or ``runnable`` without a provider's name.
        TypeError: an argument of another type.
        TaskError: unknown suite, split or task.
        DesktopError: the desktop cannot be created; from :meth:`reset`: all attempts failed.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's own attribute)

    def __init__(
        self,
        provider: Provider = "sim",
        *,
        suite: str | Path | Suite | None = None,
        split: str = "all",
        runnable: bool = False,
        options: EpisodeOptions | None = None,
        provider_options: Mapping[str, Any] | None = None,
        deadline: float = CALL_DEADLINE,
        reset_retries: int = 2,
        warm: int = 0,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode: expected None or 'rgb_array', got {render_mode!r}")
        check_retries("reset_retries", reset_retries)
        self.render_mode = render_mode
        make = desktop_factory(provider, provider_options)
        self.suite, self._tasks = choose_tasks(suite, split, provider, runnable=runnable, options=provider_options)
        self._retries = reset_retries
        self.vector = DesktopVector(make, 1, options, deadline=deadline, warm=warm)
        self.vector.close_with(self)
        self._task = self._tasks[0]
        self._result: StepResult | None = None
        width, height = self.vector.screen_size
        self.observation_space = spaces.Dict(
            {
                "screenshot": spaces.Box(0, 255, (height, width, 3), np.uint8),
                "instruction": AnyText(max(MAX_INSTRUCTION, *(len(task.instruction) for task in self.suite.tasks))),
            }
        )
        self.action_space = AnyText(MAX_RESPONSE)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Starts an episode on a freshly reset desktop.

        Args:
            seed: seeds the choice of tasks and desktops; None: the current random state.
            options: ``{"task": id or Task}``; None: a random task of the split.

        Returns:
            (observation, info).

        Raises:
            ValueError: unknown option, or a negative seed.
            TypeError: options that are no mapping, a task that is neither an id nor a Task, a seed that is no integer.
            TaskError: unknown task id, or a wrong task.
            DesktopError: every attempt failed.
        """
        options = {} if options is None else options
        _check_reset(seed, options)
        super().reset(seed=None if seed is None else int(seed))
        drawn = self._tasks[self.np_random.integers(len(self._tasks))]
        desktop_seed = int(self.np_random.integers(2**31))
        asked = options.get("task", drawn)
        self._task = asked if isinstance(asked, Task) else self.suite.task(asked)
        self.vector.drain()  # does nothing unless an exception interrupted a step
        for _ in range(self._retries + 1):
            self.vector.send_reset(0, self._task, desktop_seed)
            result = self._take()
            if result.failure is None:
                return self._observation(result), self._info(result)
        assert result.failure is not None
        raise DesktopError(result.failure, result.info["failure"].removeprefix(f"{result.failure.value}: "))

    def step(self, action: str) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Performs one response: parses it, performs its actions, takes a screenshot, verifies an ended episode.

        Returns:
            (observation, reward, terminated, truncated, info).

        Raises:
            TypeError: the action is not text.
        """
        if not isinstance(action, str):
            raise TypeError(f"step: the action must be a str, the policy's response, got {type(action).__name__}")
        self.vector.send(0, action)
        result = self._take()
        truncated = result.stop in TRUNCATING
        return self._observation(result), result.reward, result.done and not truncated, truncated, self._info(result)

    def render(self) -> NDArray[np.uint8] | None:
        """The current frame, uint8 ``[H, W, 3]``, in ``rgb_array`` mode; else None."""
        if self.render_mode is None or self._result is None:
            return None
        return self._result.screenshot.pixels

    def close(self) -> None:
        """Closes the desktop."""
        self.vector.close()

    def _take(self) -> StepResult:
        ((_, self._result),) = self.vector.receive()
        return self._result

    def _observation(self, result: StepResult) -> Observation:
        return {"screenshot": result.screenshot.pixels, "instruction": self._task.instruction}

    def _info(self, result: StepResult) -> dict[str, Any]:
        return {
            "task_id": self._task.id,
            "stop_reason": "" if result.stop is None else result.stop.value,
            "score": 0.0 if result.verdict is None else float(result.verdict.score),
            "success": result.verdict is not None and result.verdict.success,
            "exhausted": result.verdict is not None and result.verdict.exhausted,
            "parse_error": result.parse_error,
            "env_error": result.stop is StopReason.env_error,
            "failure": None if result.failure is None else result.info["failure"],
        }


def _check_reset(seed: object, options: object) -> None:
    """Raises as :meth:`OSWorldGymnasiumEnv.reset`; nothing has begun."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise TypeError(f"reset: seed must be an integer >= 0, or None; got {seed!r}")
    if isinstance(seed, Integral) and seed < 0:
        raise ValueError(f"reset: seed must be an integer >= 0, or None; got {seed}")
    if not isinstance(options, Mapping):
        raise TypeError(f'reset: options must be a mapping, as {{"task": id}}, or None; got {options!r}')
    unknown = sorted(str(name) for name in options if name != "task")
    if unknown:
        raise ValueError(f"reset has no option {', '.join(unknown)}; it has: task")
    if "task" in options and not isinstance(options["task"], str | Task):
        raise TypeError(
            f'reset: options["task"] must be a task\'s id or a Task, got {options["task"]!r}; leave it out for a task '
            "at random"
        )
