"""Runs many episodes on a few desktops.

One call of the policy answers all episodes that wait for a response, unless it is an engine that forms its own batches:
it is asked for each as soon as it waits (:mod:`.answers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from tensordict import TensorDictBase

from bepa_torchrl.data.keys import Source
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import Turn, episode_rows
from bepa_torchrl.policies.base import ImagePrefetcher, Sampler
from bepa_torchrl.rollout.answers import Question, make_answers
from bepa_torchrl.rollout.replay import Prefix, mean_hash, same_screen
from osworld_gym.episode import CrashRecord
from osworld_gym.errors import FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.types import PromptContext, StepResult, StopReason, Verdict
from osworld_gym.vector import DesktopVector

_NO_PROMPT = Prompt(torch.empty(0, dtype=torch.int64), ())  #: of a replayed step


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """One episode to run.

    Args:
        task: the task.
        key: seed key of the episode (:func:`bepa_torchrl.data.seeding.episode_key`); each response appends its step.
        env_seed: seed of the desktop; a retry uses the same one.
        group_id: unique in a run.
        slot: index in the group, 0..N-1.
        plan: the expert's plan, appended to the instruction (LEVEL-1), or None.
        handover: steps that the policy acts without the plan first; 0: it has the plan from the first step.
        prefix: what is replayed before the policy acts, on a desktop of the same seed; None: nothing.
    """

    task: Task
    key: tuple[int, ...]
    env_seed: int
    group_id: int = 0
    slot: int = 0
    plan: str | None = None
    handover: int = 0
    prefix: Prefix | None = None


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The outcome of a job.

    Args:
        rows: lazy stack ``[S]``; None if the infrastructure failed, or the policy gave no response.
        stop: why it ended; ``crashed_desktop`` if the same actions crashed the desktop twice, see
            :class:`osworld_gym.episode.CrashRecord`.
        verdict: None with ``env_error``, and of an episode that is judged later.
        failure: reason of the last attempt's failure; only with ``env_error`` and ``crashed_desktop``.
        retried: reasons of the failed attempts after which the episode was started again.
        steps: responses, in the last attempt, replayed ones included.
        seconds: duration of the last attempt.
        replayed: its first steps, which were replayed; their prompts are empty and their log-probs NaN.
        mismatch: whether a screen of the replay was not the stored one, or the episode ended in it; then the policy
            went on from there.
    """

    job: EpisodeJob
    rows: TensorDictBase | None
    stop: StopReason
    verdict: Verdict | None
    failure: FailureReason | None = None
    retried: tuple[FailureReason, ...] = ()
    steps: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)
    replayed: int = 0
    mismatch: bool = False

    @property
    def retries(self) -> int:
        """How often the episode was started again after an infrastructure failure."""
        return len(self.retried)

    @property
    def failures(self) -> tuple[FailureReason, ...]:
        """Reasons of all failed attempts, the last one included."""
        return self.retried if self.failure is None else (*self.retried, self.failure)

    @property
    def success(self) -> bool:
        return self.verdict is not None and self.verdict.success

    @property
    def valid(self) -> bool:
        """False if the infrastructure failed; an episode that crashed its desktop is valid, and has failed."""
        return self.stop is not StopReason.env_error


@dataclass(slots=True)
class _ActiveEpisode:
    """An episode that is running on one desktop."""

    number: int
    job: EpisodeJob
    turns: list[Turn] = field(default_factory=list)
    screenshots: list[bytes] = field(default_factory=list)
    context_full: bool = False  #: it ends without a further response
    replayed: int = 0
    mismatch: bool = False
    started: float = field(default_factory=perf_counter)

    @property
    def last_response(self) -> str | None:
        """The response that the desktop is performing, if any."""
        return self.turns[-1].response.text if self.turns and not self.context_full else None

    def next_replayed(self) -> int | None:
        """The step of the prefix to replay at the current screen; None: the policy acts from here on."""
        prefix, step = self.job.prefix, self.replayed
        if prefix is None or self.mismatch or step < len(self.turns):
            return None
        self.mismatch = not same_screen(mean_hash(self.screenshots[-1]), prefix.screens[step])
        return None if self.mismatch or step == prefix.steps else step

    def replay(self, step: int) -> str:
        """Adds a step of the prefix; returns its response."""
        assert self.job.prefix is not None
        text, tokens = self.job.prefix.texts[step], torch.tensor(self.job.prefix.tokens[step], dtype=torch.int64)
        response = Response(text, tokens, torch.full((len(tokens),), torch.nan))
        self.turns.append(Turn(self.screenshots[-1], _NO_PROMPT, response))
        self.replayed += 1
        return text

    def context(self) -> PromptContext:
        return PromptContext(
            self.job.task.instruction,
            tuple(self.screenshots),
            tuple(turn.response.text for turn in self.turns),
            self.job.plan if len(self.turns) >= self.job.handover else None,
            tuple(tuple(turn.response.tokens.tolist()) for turn in self.turns),
        )


def run_episodes(
    policy: Sampler,
    vector: DesktopVector,
    jobs: Sequence[EpisodeJob],
    *,
    temperature: float = 1.0,
    retries: int = 2,
    on_result: Callable[[EpisodeResult], None] = lambda _: None,
    keep_rows: bool = True,
) -> list[EpisodeResult]:
    """Runs every job once and returns the results in the jobs' order.

    A free desktop gets the next job at once. The policy is called with a batch of the episodes that wait for a response
    at that time, a concurrent engine for each by itself, so that none waits for the response of another. An episode
    whose desktop failed is started again on a new desktop with the same seed, at most ``retries`` times; then the
    failure is its result.

    One failure counts as the policy's: if the desktop exits within a step, and exits again at the same step with the
    same actions when the episode is retried (:class:`osworld_gym.episode.CrashRecord`), the episode ends as
    ``crashed_desktop`` with score 0, and its rows are trained on.

    Args:
        policy: samples the responses.
        vector: the desktops.
        jobs: the episodes.
        temperature: the temperature of the sampling; 0 is greedy.
        retries: further attempts for an episode whose desktop failed.
        on_result: is called with each result as soon as its episode is over.
        keep_rows: whether the returned results have their rows, which hold every screenshot; those that ``on_result``
            gets always have.
    """
    return _EpisodeRunner(policy, vector, jobs, temperature, retries, on_result, keep_rows).run()


class _EpisodeRunner:
    def __init__(
        self,
        policy: Sampler,
        vector: DesktopVector,
        jobs: Sequence[EpisodeJob],
        temperature: float,
        retries: int,
        on_result: Callable[[EpisodeResult], None],
        keep_rows: bool,
    ) -> None:
        self.policy, self.vector, self.jobs = policy, vector, jobs
        self.answers = make_answers(policy, temperature, len(vector), vector.wake)
        self.retries, self.on_result = retries, on_result
        self.keep_rows = keep_rows
        self.waiting = deque(range(len(jobs)))
        self.free = deque(range(len(vector)))
        self.active: dict[int, _ActiveEpisode] = {}
        self.retried: list[tuple[FailureReason, ...]] = [()] * len(jobs)
        self.crashes = CrashRecord(vector.options.action_text)
        self.results: dict[int, EpisodeResult] = {}

    def run(self) -> list[EpisodeResult]:
        self.vector.drain()  # does nothing unless an exception interrupted an earlier run
        with self._prefetching(), self.answers:
            while len(self.results) < len(self.jobs):
                self._start()
                ready = [i for i, result in self.vector.receive() if not self._take(i, result)]
                self._ask(sorted(ready, key=lambda i: self.active[i].number))
                # no desktop works, and none can start
                idle = self.answers.pending == len(self.active) > 0 and not (self.free and self.waiting)
                self._respond(self.answers.take(wait=idle))
        self.vector.receive(0)  # no answer is left to wake it
        return [self.results[n] for n in range(len(self.jobs))]

    @contextmanager
    def _prefetching(self) -> Iterator[None]:
        """Screenshots are prepared as soon as they are there, while the policy answers others."""
        renderer = self.policy.renderer
        if isinstance(renderer, ImagePrefetcher):
            self.vector.on_screenshot = lambda png: renderer.prefetch([png])
        try:
            yield
        finally:
            self.vector.on_screenshot = None

    def _start(self) -> None:
        """Starts the next jobs on the free desktops."""
        while self.free and self.waiting:
            i, number = self.free.popleft(), self.waiting.popleft()
            job = self.jobs[number]
            self.active[i] = _ActiveEpisode(number, job)
            self.vector.send_reset(i, job.task, job.env_seed)

    def _take(self, i: int, result: StepResult) -> bool:
        """Records the result of desktop ``i``; True when its episode is over."""
        episode = self.active[i]
        if not result.done:
            episode.screenshots.append(result.screenshot.png)
            return False
        del self.active[i]
        self.free.append(i)
        result = self.crashes.score(episode.number, result, len(episode.turns) - 1, episode.last_response)
        retried = self.retried[episode.number]
        if result.stop is StopReason.env_error and len(retried) < self.retries:
            assert result.failure is not None
            self.retried[episode.number] = (*retried, result.failure)
            self.waiting.appendleft(episode.number)
        else:
            outcome = self._result(episode, result)
            self.on_result(outcome)
            self.results[episode.number] = outcome if self.keep_rows else replace(outcome, rows=None)
        return True

    def _result(self, episode: _ActiveEpisode, result: StepResult) -> EpisodeResult:
        job, stop = episode.job, result.stop
        assert stop is not None
        rows = None
        if stop is not StopReason.env_error and len(episode.turns) > episode.replayed:
            rows = episode_rows(
                episode.turns,
                task_id=job.task.id,
                instruction=job.task.instruction,
                group_id=job.group_id,
                slot=job.slot,
                source=Source.on_policy if job.plan is None else Source.self_rolled,
                policy_version=self.policy.version,
                reward=result.reward,
                stop=stop,
                plan_free=job.plan is None,
            )
        retried, seconds = self.retried[episode.number], round(perf_counter() - episode.started, 3)
        return EpisodeResult(
            job,
            rows,
            stop,
            result.verdict,
            result.failure,
            retried,
            len(episode.turns),
            seconds,
            episode.replayed,
            episode.mismatch or 0 < episode.replayed == len(episode.turns),
        )

    def _replay(self, i: int) -> bool:
        """Sends the next response of the prefix of desktop ``i``, if it is the prefix's turn."""
        step = self.active[i].next_replayed()
        if step is not None:
            self.vector.send(i, self.active[i].replay(step))
        return step is not None

    def _ask(self, ready: list[int]) -> None:
        """Asks for responses to all waiting episodes; replays those of prefixes."""
        ready = [i for i in ready if not self._replay(i)]
        prompts = self.policy.renderer.render([self.active[i].context() for i in ready]) if ready else []
        questions = []
        for i, prompt in zip(ready, prompts, strict=True):
            if prompt is None:
                self.active[i].context_full = True
                self.vector.send_end(i, StopReason.context_full)
            else:
                questions.append(Question(i, prompt, (*self.active[i].job.key, len(self.active[i].turns))))
        self.answers.ask(questions)

    def _respond(self, answers: list[tuple[Question, Response]]) -> None:
        """Sends responses to their desktops."""
        for (i, prompt, _), response in answers:
            episode = self.active[i]
            episode.turns.append(Turn(episode.screenshots[-1], prompt, response))
            self.vector.send(i, response.text)
