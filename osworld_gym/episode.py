"""One episode on one desktop: sets up the task, performs the policy's responses, verifies the result.

One step: parse the response, perform its actions, take a screenshot, and verify if the episode has ended.
``vector.py`` runs many episodes in parallel; this module uses no threads. :class:`CrashRecord` decides which failures
of a retried episode are the policy's.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from osworld_gym.action_text import ACTION_TEXTS, action_text
from osworld_gym.counts import check_count
from osworld_gym.desktops.base import Desktop
from osworld_gym.errors import DesktopError, FailureReason, ParseError, TaskError
from osworld_gym.tasks.evaluation.judging import History, Judge, is_judged
from osworld_gym.tasks.evaluation.score import Evaluators
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.task import Task
from osworld_gym.types import CALL_USER_TOLERANCE, Action, Screenshot, StepResult, StopReason, Verdict
from osworld_gym.uitars.coords import ImageScaling

#: stop reasons that truncate an episode (``truncated``); the others terminate it (``terminated``)
TRUNCATING = frozenset({StopReason.max_steps, StopReason.context_full, StopReason.env_error})
#: failures that mean that the desktop exited; not timeouts, which load alone can repeat
EXITS = frozenset({FailureReason.died, FailureReason.bad_screenshot})


@dataclass(frozen=True, slots=True)
class Timing:
    """Fixed sleeps in seconds, in addition to the waits for events. 0 by default."""

    after_reset: float = 0.0
    after_action: float = 0.0
    before_evaluation: float = 0.0


#: OSWorld's sleeps: ``lib_run_single`` after the reset and before evaluating, ``DesktopEnv.step`` after each response
OFFICIAL_TIMING = Timing(after_reset=60.0, after_action=2.0, before_evaluation=20.0)


def pause(seconds: float) -> None:
    """Sleeps for one of the times of :class:`Timing`, in seconds."""
    if seconds:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """When an episode ends, the pixel coordinates of the model's actions, and how the result is verified.

    Args:
        max_steps: number of responses after which the episode ends with ``max_steps``.
        parse_errors: number of unparsable responses in a row after which it ends with ``parse_error``.
        call_user_tolerance: the ``call_user()`` that ends the episode, counted over the episode, at most once per
            response. With OSWorld's settings its UI-TARS agent waits at three and gives up at the 4th.
        scaling: how the model's image was scaled; None if the model's coordinates are screen pixels.
        action_text: the format of responses, a key of :data:`osworld_gym.action_text.ACTION_TEXTS`. OSWorld ends an
            episode at OpenCUA's first ``computer.terminate(status="failure")``: ``call_user_tolerance=1``.
        official_timing: sleep where OSWorld sleeps (:data:`OFFICIAL_TIMING`), for comparisons. This adds more than a
            minute per episode, so the deadline of a call must be longer than that.
        evaluators: which evaluators score the episode, and their deadline.
        files: the cache of the tasks' files; None: this machine's default cache.
        judge: scores the tasks that a judge scores; None: there are none.

    Raises:
        ValueError: one of the three limits is not an integer of at least 1, or an unknown ``action_text``.
    """

    max_steps: int = 15
    parse_errors: int = 3
    call_user_tolerance: int = CALL_USER_TOLERANCE
    scaling: ImageScaling | None = None
    action_text: str = "uitars"
    official_timing: bool = False
    evaluators: Evaluators = field(default_factory=Evaluators)
    files: FileCache | None = None
    judge: Judge | None = None

    @property
    def timing(self) -> Timing:
        """The sleeps of this episode."""
        return OFFICIAL_TIMING if self.official_timing else Timing()

    def __post_init__(self) -> None:
        action_text(self.action_text)
        for name in ("max_steps", "parse_errors", "call_user_tolerance"):
            check_count(f"EpisodeOptions.{name}", getattr(self, name))


def options_or_default(options: EpisodeOptions | None) -> EpisodeOptions:
    """The options, or the default ones for None.

    Raises:
        TypeError: they are something else, such as a dictionary.
    """
    if options is None:
        return EpisodeOptions()
    if not isinstance(options, EpisodeOptions):
        raise TypeError(f"options must be EpisodeOptions, got {options!r}; fix: options=EpisodeOptions(max_steps=15)")
    return options


def blank(size: tuple[int, int]) -> Screenshot:
    """A black frame of ``(width, height)`` pixels, used until the desktop has returned a screenshot."""
    return Screenshot(pixels=np.zeros((size[1], size[0], 3), np.uint8))


class Episode:
    """Runs episodes of a policy on one desktop.

    No method raises DesktopError: if the desktop fails, the episode ends with ``env_error`` and the reason, without a
    verdict. After that only :meth:`begin` may be called, and the desktop should be replaced first.

    Raises:
        TaskError: (any method) the task itself is wrong. The episode has ended; the desktop requires a reset.
        RuntimeError: :meth:`act` or :meth:`end` was called without a running episode.
    """

    def __init__(self, desktop: Desktop, options: EpisodeOptions) -> None:
        self.desktop = desktop
        self.options = options
        self._task: Task | None = None
        self._history: History | None = None
        self._frame = blank(desktop.screen_size)

    def begin(self, task: Task, seed: int) -> StepResult:
        """Resets the desktop, runs the task's setup steps, takes the first frame. ``stop``: None, or ``env_error``."""
        self._task = self._history = None
        self._steps = self._parse_streak = self._calls = 0
        self._frame = blank(self.desktop.screen_size)
        start, timing = perf_counter(), self.options.timing
        if is_judged(task) and self.options.judge is None:
            raise TaskError(f"task {task.id!r} is scored by a judge, and there is none; fix: EpisodeOptions(judge=…)")
        try:
            self.desktop.reset(seed)
            prepare(task, self.desktop, self.options.files, seed=seed)
            pause(timing.after_reset)
            self._take_screenshot()
        except DesktopError as error:
            return self._failed(error)
        self._task = task
        self._history = History(self.desktop, task, self._frame) if is_judged(task) else None
        return StepResult(self._frame, info={"begin_s": perf_counter() - start})

    def act(self, text: str) -> StepResult:
        """Performs one response of the policy; one response is one step, however many actions it contains.

        Actions after one that ends the episode are dropped; ``StepResult.actions`` has the others. A response that
        cannot be parsed is a step that does nothing.
        """
        self._running()
        self._steps += 1
        start = perf_counter()
        actions, stop, problem = self._read(text)
        try:
            if actions and (stop is None or len(actions) > 1):
                self.desktop.perform(actions if stop is None else actions[:-1])
            pause(self.options.timing.after_action)
            self._take_screenshot()
        except DesktopError as error:
            return self._failed(error, actions)
        if self._history is not None:
            self._history.add(text, actions, problem, self._frame)
        if stop is None and self._steps >= self.options.max_steps:
            stop = StopReason.max_steps
        return self._result(stop, actions, problem, {"step_s": perf_counter() - start})

    def end(self, stop: StopReason) -> StepResult:
        """Ends and verifies the episode between two responses, e.g. with ``context_full``; counts no step.

        Raises:
            ValueError: ``stop`` is ``env_error`` or ``crashed_desktop``, which cannot be verified.
        """
        self._running()
        if stop in (StopReason.env_error, StopReason.crashed_desktop):
            raise ValueError(f"end requires a stop that can be verified, got {stop}; reset the desktop instead")
        return self._result(stop, (), None, {})

    def _read(self, text: str) -> tuple[tuple[Action, ...], StopReason | None, str | None]:
        """Parses a response: (actions in screen pixels, stop reason or None, reason of a parse error or None)."""
        try:
            parsed = ACTION_TEXTS[self.options.action_text].parse(text)
        except ParseError as error:
            self._parse_streak += 1
            full = self._parse_streak >= self.options.parse_errors
            return (), StopReason.parse_error if full else None, error.reason
        self._parse_streak = 0
        actions, stop = self._until_end(parsed.actions)
        if self.options.scaling is not None:
            size = self.desktop.screen_size
            actions = tuple(self.options.scaling.action_to_screen(action, size) for action in actions)
        return actions, stop, None

    def _until_end(self, actions: Sequence[Action]) -> tuple[tuple[Action, ...], StopReason | None]:
        called = False
        for i, action in enumerate(actions):
            if action.kind == "finished":
                return tuple(actions[: i + 1]), StopReason.finished
            if action.kind == "call_user" and not called:
                called = True
                self._calls += 1
                if self._calls >= self.options.call_user_tolerance:
                    return tuple(actions[: i + 1]), StopReason.call_user
        return tuple(actions), None

    def _take_screenshot(self) -> None:
        frame = self.desktop.screenshot()
        try:
            size = frame.size
        except ValueError as error:
            raise DesktopError(FailureReason.bad_screenshot, str(error)) from error
        if size != self.desktop.screen_size:
            wanted = self.desktop.screen_size
            raise DesktopError(FailureReason.bad_screenshot, f"expected a frame of {wanted} pixels, got {size}")
        self._frame = frame

    def _result(
        self, stop: StopReason | None, actions: tuple[Action, ...], problem: str | None, info: dict[str, float]
    ) -> StepResult:
        if stop is None:
            return StepResult(self._frame, actions=actions, parse_error=problem, info=info)
        task = self._running()
        self._task = None
        start = perf_counter()
        try:
            pause(self.options.timing.before_evaluation)
            verdict = self._verdict(task, stop)
        except DesktopError as error:
            return self._failed(error, actions)
        info["verify_s"] = perf_counter() - start
        return StepResult(self._frame, stop, verdict, actions=actions, parse_error=problem, info=info)

    def _verdict(self, task: Task, stop: StopReason) -> Verdict | None:
        options, history = self.options, self._history
        if history is None or options.judge is None:
            return verify(task, self.desktop, stop=stop, evaluators=options.evaluators, files=options.files)
        self._history = None  # its frames are large
        return options.judge(history.played(stop, options.action_text))

    def _failed(self, error: DesktopError, actions: tuple[Action, ...] = ()) -> StepResult:
        self._task = None
        return failed(self._frame, error, actions)

    def _running(self) -> Task:
        if self._task is None:
            raise RuntimeError("no episode is running on this desktop: begin one first")
        return self._task


def failed(frame: Screenshot, error: DesktopError, actions: tuple[Action, ...] = ()) -> StepResult:
    """The ``env_error`` result for a desktop's failure, with the message in ``info["failure"]``."""
    return StepResult(frame, StopReason.env_error, failure=error.reason, actions=actions, info={"failure": str(error)})


@dataclass(frozen=True, slots=True)
class Crash:
    """A desktop exited at step ``step`` (0-based) while it performed ``actions``."""

    step: int
    actions: tuple[Action, ...]


def crash_of(result: StepResult, step: int, response: str | None, action_text: str = "uitars") -> Crash | None:
    """The crash that ended an attempt; None if it ended otherwise, or not while actions were performed.

    Args:
        result: the last result of the attempt.
        step: 0-based number of the step.
        response: the response of that step; None for a reset, or an end without a response (``context_full``).
        action_text: its format, see :class:`EpisodeOptions`.
    """
    if result.failure not in EXITS or response is None:
        return None
    try:
        actions = ACTION_TEXTS[action_text].parse(response).actions
    except ParseError:
        return None  # nothing was performed
    if all(action.kind in ("finished", "call_user") for action in actions):
        return None  # it exited during verification
    return Crash(step, actions)


class CrashRecord:
    """The crashes of episodes that are retried: what the policy breaks is scored 0, only infrastructure is masked.

    A desktop that exits within a step, and exits again at the same step with the same actions when the episode is
    retried with the same seed, was ended by the policy's actions.

    Args:
        action_text: the format of responses, see :class:`EpisodeOptions`.
    """

    def __init__(self, action_text: str = "uitars") -> None:
        self._action_text = action_text
        self._seen: dict[Hashable, set[Crash]] = {}

    def score(self, episode: Hashable, result: StepResult, step: int, response: str | None) -> StepResult:
        """``result``, or, if an earlier attempt crashed in the same way, ``crashed_desktop`` with score 0.

        Args:
            episode: what all attempts of an episode share, and no other episode has.
            result: a result of the attempt; only a failure is compared and recorded.
            step: as in :func:`crash_of`.
            response: as in :func:`crash_of`.
        """
        crash = crash_of(result, step, response, self._action_text)
        if crash is None:
            return result
        seen = self._seen.setdefault(episode, set())
        if crash not in seen:
            seen.add(crash)
            return result
        problem = f"the desktop exited twice at step {step} with the same actions: {result.info.get('failure')}"
        return replace(result, stop=StopReason.crashed_desktop, verdict=Verdict(0.0, problem))

    def forget(self, episode: Hashable) -> None:
        """Drops the crashes of an episode that will not be retried."""
        self._seen.pop(episode, None)

    def __len__(self) -> int:
        """The number of episodes with a recorded crash."""
        return len(self._seen)
