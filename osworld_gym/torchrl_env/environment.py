"""OSWorldEnv: a batch of desktops as one TorchRL environment, ``[N]``.

The action is the model's response as text; the observation is the instruction and the screenshot. The environment
chooses the tasks (:mod:`osworld_gym.assignment`), also on automatic resets, unless ``reset(tasks=...)`` is given them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from tensordict import NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

from osworld_gym.assignment import Assignment, GroupedTasks, IndependentTasks, TaskAssigner
from osworld_gym.counts import check_count
from osworld_gym.episode import TRUNCATING, CrashRecord, EpisodeOptions, options_or_default
from osworld_gym.errors import TaskError
from osworld_gym.factory import Provider, as_seed, check_retries, choose_tasks, desktop_factory
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task
from osworld_gym.torchrl_env.variable_length import VariableLength
from osworld_gym.types import StepResult, StopReason
from osworld_gym.vector import CALL_DEADLINE, DesktopVector

logger = logging.getLogger(__name__)

EXAMPLE_ACTION = "Thought: look\nAction: wait()"
INTEGERS = ("step_count", "group_id", "slot", "retries_left")  #: int64 ``[N, 1]`` observations


@dataclass(slots=True)
class Row:
    """The state of one desktop: its episode, its last result, and the number of responses so far."""

    assignment: Assignment
    assigner: TaskAssigner
    result: StepResult
    steps: int = 0
    response: str | None = None  #: the one being performed
    failed_reset: bool = False  #: no desktop could be started: the next step ends the episode with ``env_error``
    done: bool = False

    @property
    def task(self) -> Task:
        return self.assignment.task


class OSWorldEnv(EnvBase):
    """``num_envs`` desktops as one batched environment, batch size ``[N]`` (also ``[1]`` for N = 1).

    Keys: ``action`` str; observations ``instruction`` str, ``task_id`` str, ``screenshot`` uint8 ``[N, 3, H, W]`` or
    ``screenshot_png`` bytes, ``stop_reason`` str ("" while the episode is running), ``score`` float32 ``[N, 1]`` (the
    verifier's, in [0, 1], of which only 1 is rewarded; 0 until it has scored), ``success`` bool ``[N, 1]``,
    ``env_error`` bool ``[N, 1]``, ``step_count`` int64 ``[N, 1]``, and ``group_id``, ``slot``, ``retries_left`` int64
    ``[N, 1]`` (:class:`~osworld_gym.assignment.Assignment`); ``reward`` float32 ``[N, 1]``: 1 for a verified success,
    else 0; ``done``, ``terminated``, ``truncated`` bool ``[N, 1]``.

    A row whose infrastructure failed is truncated with reward 0 and ``env_error`` True: mask it, since it is not an
    outcome of the policy. If the desktop of a retried episode (``group_size`` > 1) exits again at the same step with
    the same actions, the policy ended it: reward 0, ``env_error`` False and ``stop_reason`` "crashed_desktop". A reset
    that fails is repeated on a new desktop, up to ``reset_retries`` times; if all fail, the row is returned with
    ``env_error`` True and a black frame, and ends at its next step.

    A finished row keeps its state, with reward 0, until it is reset. A policy whose prompt no longer fits the model's
    context sets ``context_full`` (bool ``[N, 1]``, optional) in addition to ``action``: the episode of such a row is
    verified and ends with ``stop_reason`` "context_full", without performing the action.

    Text has no fixed size, and its specs say so (:class:`~osworld_gym.torchrl_env.VariableLength`): collectors,
    ``SerialEnv`` and ``ParallelEnv`` use no preallocated buffers by default. Each worker needs its own seed;
    ``set_seed`` of ``ParallelEnv`` and ``SerialEnv`` sets them. Some stock storages and transforms misread text and
    ``[3, H, W]`` screenshots without an error: docs/torchrl.md lists them, and what to do.

    ``vector`` is the :class:`~osworld_gym.vector.DesktopVector` of the desktops. A collector may use it directly
    instead of :meth:`step`, and must then call :meth:`reset` before the next :meth:`step`.

    Args:
        provider: a name of ``desktops.registry.PROVIDERS``, or a function that creates a desktop.
        num_envs: N, the number of desktops.
        suite: a suite, its name, or an OSWorld folder; None: the provider's default suite.
        split: split of the suite; ``all`` for every task. Tasks that this version does not support are left out.
        runnable: whether to leave out tasks that cannot run on this machine with this provider, too; a warning counts
            them by reason. Otherwise such a task is a TaskError when it is set up or scored.
        observation: ``array`` (``screenshot``) or ``png`` (``screenshot_png``).
        options: when an episode ends, and the pixel coordinates of the model's actions.
        provider_options: keyword arguments of the provider's class.
        deadline: seconds for one call on a blocking desktop.
        seed: seed of the choice of tasks and of the desktops; ``set_seed`` replaces it and restarts the choice.
        reset_retries: how often a failed reset is repeated.
        warm: number of desktops kept ready in addition to those in use, reset in advance.
        group_size: episodes per group. 1: every row draws its tasks independently, with replacement. Above 1: the
            episodes of this environment form groups with the same task and desktop seed, run by whichever rows are
            free (``num_envs`` need not be a multiple); ``bepa_torchrl.GroupRows`` collects them. An episode that a
            reset interrupts is run again.
        episode_retries: how often an episode is run again if its desktop fails, with ``group_size`` > 1.

    Raises:
        ValueError: unknown provider or option, an argument out of range, or ``runnable`` without a provider's name.
        TypeError: an argument of another type.
        TaskError: unknown suite, split or task.
        DesktopError: the first desktop cannot be created.
    """

    def __init__(
        self,
        provider: Provider = "sim",
        num_envs: int = 1,
        *,
        suite: str | Path | Suite | None = None,
        split: str = "all",
        runnable: bool = False,
        observation: Literal["array", "png"] = "array",
        options: EpisodeOptions | None = None,
        provider_options: Mapping[str, Any] | None = None,
        deadline: float = CALL_DEADLINE,
        seed: int = 0,
        reset_retries: int = 2,
        warm: int = 0,
        group_size: int = 1,
        episode_retries: int = 2,
    ) -> None:
        if observation not in ("array", "png"):
            raise ValueError(f"observation must be 'array' or 'png', got {observation!r}")
        for name, given in (("num_envs", num_envs), ("group_size", group_size)):
            check_count(f"OSWorldEnv: {name}", given)
        check_retries("episode_retries", episode_retries)
        check_retries("reset_retries", reset_retries)
        make = desktop_factory(provider, provider_options)
        super().__init__(device=None, batch_size=[num_envs])
        self.suite, self._tasks = choose_tasks(suite, split, provider, runnable=runnable, options=provider_options)
        self._png = observation == "png"
        self._retries = reset_retries
        self._group_size, self._episode_retries = group_size, episode_retries
        self._rows: list[Row | None] = [None] * num_envs
        options = options_or_default(options)
        self._action_text = options.action_text
        self._set_seed(seed)
        self.vector = DesktopVector(make, num_envs, options, deadline=deadline, warm=warm)
        self.vector.close_with(self)
        self._make_specs(num_envs)

    def _make_specs(self, n: int) -> None:
        width, height = self.vector.screen_size
        if self._png:
            frame = {"screenshot_png": VariableLength((n, -1), example_data=b"")}
        else:
            frame = {"screenshot": Unbounded(shape=(n, 3, height, width), dtype=torch.uint8)}
        self.observation_spec = Composite(
            instruction=VariableLength((n, -1), example_data=""),
            task_id=VariableLength((n, -1), example_data=""),
            stop_reason=VariableLength((n, -1), example_data=""),
            score=Unbounded(shape=(n, 1), dtype=torch.float32),
            success=Binary(n=1, shape=(n, 1), dtype=torch.bool),
            env_error=Binary(n=1, shape=(n, 1), dtype=torch.bool),
            **{key: Unbounded(shape=(n, 1), dtype=torch.int64) for key in INTEGERS},
            shape=(n,),
            **frame,
        )
        self.action_spec = Composite(action=VariableLength((n, -1), example_data=EXAMPLE_ACTION), shape=(n,))
        # in 0..1, without these bounds: TorchRL's RewardScaling and RewardClipping do not take a bounded reward
        self.reward_spec = Unbounded(shape=(n, 1), dtype=torch.float32)
        flag = Binary(n=1, shape=(n, 1), dtype=torch.bool)
        self.done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=(n,))

    def _set_seed(self, seed: int | None) -> None:
        seed = 0 if seed is None else as_seed("OSWorldEnv: seed", seed)
        self._crashes = CrashRecord(self._action_text)  # by group_id and slot
        self._assigner: TaskAssigner = (
            IndependentTasks(self._tasks, seed, self.batch_size.numel())
            if self._group_size == 1
            else GroupedTasks(self._tasks, seed, self._group_size, self._episode_retries)
        )

    def _reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        tasks: Sequence[Task | str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> TensorDictBase:
        """Resets the rows set in ``_reset``, by default all. ``tasks`` and ``seeds``: one per row being reset."""
        rows = self._masked(tensordict, "_reset")
        for name, given in (("tasks", tasks), ("seeds", seeds)):
            if given is not None and (isinstance(given, str) or not hasattr(given, "__len__")):
                raise TypeError(f"reset: {name}: expected a list of one per row being reset, got {given!r:.80}")
            if given is not None and len(given) != len(rows):
                raise ValueError(f"reset: {name}: expected one per row being reset, {len(rows)}, got {len(given)}")
        if seeds is not None and tasks is None and self._group_size > 1:
            raise ValueError("reset: seeds without tasks would split a group, whose episodes share their seed")
        given_tasks = None if tasks is None else [self._task(task) for task in tasks]
        given_seeds = None if seeds is None else [as_seed("reset: seeds", seed) for seed in seeds]
        for i in reversed(rows):  # reversed, so that each row gets its own episode again
            row = self._rows[i]
            if row is not None and not row.done and row.assignment.group_id >= 0:
                row.assigner.dropped(row.assignment)
        chosen = {i: self._assignment(i, k, given_tasks, given_seeds) for k, i in enumerate(rows)}
        try:
            self._start(chosen)
        except TaskError:
            raise
        except BaseException:  # an interrupt: what has not begun is run at the next reset
            for i in reversed(chosen):
                if self._rows[i] is None and chosen[i].group_id >= 0:
                    self._assigner.dropped(chosen[i])
            raise
        return self._observations()

    def _task(self, task: Task | str) -> Task:
        if not isinstance(task, str | Task):
            raise TypeError(f"reset: tasks: expected a task's id or a Task for each row being reset, got {task!r}")
        return self.suite.task(task) if isinstance(task, str) else task

    def _assignment(self, i: int, k: int, tasks: Sequence[Task] | None, seeds: Sequence[int] | None) -> Assignment:
        """The next episode of row ``i``, the ``k``-th of those being reset."""
        if tasks is None and seeds is None:
            return self._assigner.next(i)
        drawn = IndependentTasks(self._tasks, k, 1).next(0) if self._group_size > 1 else self._assigner.next(i)
        task = drawn.task if tasks is None else tasks[k]
        return replace(drawn, task=task, seed=drawn.seed if seeds is None else seeds[k], group_id=-1, slot=0)

    def _start(self, chosen: Mapping[int, Assignment]) -> None:
        for i in chosen:
            self._rows[i] = None
        self.vector.drain()  # does nothing unless an exception interrupted a step
        left = dict.fromkeys(chosen, self._retries)
        for i, assignment in chosen.items():
            self.vector.send_reset(i, assignment.task, assignment.seed)
        for i, result in self._results():
            assignment = chosen[i]
            if result.stop is None or left[i] == 0:
                self._rows[i] = Row(assignment, self._assigner, result, failed_reset=result.stop is not None)
                continue
            left[i] -= 1
            logger.warning("desktop %d: reset failed and is tried again: %s", i, result.info["failure"])
            self.vector.send_reset(i, assignment.task, assignment.seed)

    def _results(self) -> Iterator[tuple[int, StepResult]]:
        """Every pending result in order of arrival; a TaskError is raised only after all the others have arrived."""
        wrong: TaskError | None = None
        while True:
            try:
                results = self.vector.receive()
            except TaskError as error:
                wrong = error
                continue
            if not results:
                break
            yield from results
        if wrong is not None:
            raise wrong

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        texts = self._actions(tensordict)
        full = tensordict.get("context_full", None)
        rewards = np.zeros((len(self._rows), 1), np.float32)
        for i in self._masked(tensordict, "_step"):
            row = self._row(i)
            if row.done:
                continue
            row.steps += 1
            if row.failed_reset:
                self._end(row)
            elif full is not None and bool(full.reshape(-1)[i]):
                row.response = None
                self.vector.send_end(i, StopReason.context_full)
            else:
                row.response = texts[i]
                self.vector.send(i, texts[i])
        for i, result in self._results():
            row = self._row(i)
            row.result = self._score(row, result)
            rewards[i] = row.result.reward
            if result.failure is not None:
                logger.warning("desktop %d, task %s: %s", i, row.task.id, result.info["failure"])
            if result.done:
                self._end(row)
        return self._observations().set("reward", torch.from_numpy(rewards))

    def _score(self, row: Row, result: StepResult) -> StepResult:
        """The result; ``crashed_desktop`` if the same actions crashed the desktop in an earlier attempt, too."""
        if self._group_size == 1 or row.assignment.group_id < 0:
            return result  # the episode is not retried
        return self._crashes.score((row.assignment.group_id, row.assignment.slot), result, row.steps - 1, row.response)

    def _end(self, row: Row) -> None:
        row.done = True
        given, failed = row.assignment, row.result.stop is StopReason.env_error
        if not (failed and given.retries_left):
            self._crashes.forget((given.group_id, given.slot))
        if given.group_id >= 0:
            row.assigner.finished(given, failed=failed)

    def _actions(self, tensordict: TensorDictBase) -> list[str]:
        given = tensordict.get("action", None)
        if given is None:
            raise ValueError(
                "step requires the key 'action', one response text per row, got none: "
                'call the policy first, or td["action"] = NonTensorStack(*texts); a collector with policy_device= '
                'drops the text of a policy that does not have out_keys=["action"], as a TensorDictModule has'
            )
        texts: list[Any] = given.tolist()
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"step: 'action' of row {i} must be a str, got {type(text).__name__}")
        return texts

    def _masked(self, tensordict: TensorDictBase | None, key: str) -> list[int]:
        mask = None if tensordict is None else tensordict.get(key, None)
        if mask is None:
            return list(range(len(self._rows)))
        rows: list[int] = mask.reshape(-1).nonzero().squeeze(-1).tolist()
        return rows

    def _row(self, i: int) -> Row:
        row = self._rows[i]
        if row is None:
            raise RuntimeError(f"row {i} has no episode: call reset() first")
        return row

    def _observations(self) -> TensorDict:
        rows = [self._row(i) for i in range(len(self._rows))]
        stops = [row.result.stop for row in rows]
        ended = [stop if row.done else None for row, stop in zip(rows, stops, strict=True)]
        truncated = _column([stop in TRUNCATING for stop in ended])
        done = _column([row.done for row in rows])
        scores = [0.0 if row.result.verdict is None else row.result.verdict.score for row in rows]
        out = TensorDict(
            {
                "instruction": NonTensorStack(*[row.task.instruction for row in rows]),
                "task_id": NonTensorStack(*[row.task.id for row in rows]),
                "stop_reason": NonTensorStack(*["" if stop is None else stop.value for stop in stops]),
                "score": torch.tensor([[score] for score in scores], dtype=torch.float32),
                "success": _column([row.result.verdict is not None and row.result.verdict.success for row in rows]),
                "env_error": _column([stop is StopReason.env_error for stop in stops]),
                "step_count": torch.tensor([[row.steps] for row in rows]),
                "group_id": torch.tensor([[row.assignment.group_id] for row in rows]),
                "slot": torch.tensor([[row.assignment.slot] for row in rows]),
                "retries_left": torch.tensor([[row.assignment.retries_left] for row in rows]),
                "done": done,
                "terminated": done & ~truncated,
                "truncated": truncated,
            },
            batch_size=self.batch_size,
            device=self.device,  # None, unless .to() was called, as a collector with device= does
        )
        if self._png:
            return out.set("screenshot_png", NonTensorStack(*[row.result.screenshot.png for row in rows]))
        width, height = self.vector.screen_size
        frames = np.empty((len(rows), 3, height, width), np.uint8)
        for frame, row in zip(frames, rows, strict=True):
            frame[:] = row.result.screenshot.pixels.transpose(2, 0, 1)
        return out.set("screenshot", torch.from_numpy(frames))

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes every desktop."""
        super().close(raise_if_closed=raise_if_closed)
        self.vector.close()


def _column(flags: Sequence[bool]) -> Tensor:
    """Bool ``[N, 1]``."""
    return torch.tensor(flags, dtype=torch.bool).unsqueeze(-1)
