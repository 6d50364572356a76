"""Concurrent engines: a desktop goes on as soon as its own response is there; errors and results are as in batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.policies.base import EngineSampler
from bepa_torchrl.rollout.answers import BatchedAnswers, ConcurrentAnswers, make_answers
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult, run_episodes
from bepa_torchrl.testing import ScriptedPolicy, lamp_task, lamp_vector
from osworld_gym.desktops.base import Desktop
from osworld_gym.types import StopReason
from osworld_gym.vector import DesktopVector

DEADLINE = 30.0  #: seconds until a test that waits in vain fails


def jobs_of(count: int) -> list[EpisodeJob]:
    return [EpisodeJob(lamp_task(i), (0, 0, i, 0), 7 + i, i) for i in range(count)]


class Engine(ScriptedPolicy):
    """A scripted engine that several threads may call.

    Args:
        before: is called with the seed key before each response.
    """

    concurrent = True

    def __init__(self, wins: Callable[[Any], bool], before: Callable[[Any], None] = lambda _: None, **options: Any):
        super().__init__(wins, **options)
        self.before = before

    image_scaling = None

    def encode_response(self, text: str) -> Any:
        raise NotImplementedError(text)

    def decode_responses(self, rows: Any) -> Any:
        raise NotImplementedError(rows)

    def sync(self) -> None:
        """There are no weights."""

    def drain_metrics(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        """There are no processes."""

    def sample(self, prompts: Sequence[Prompt], keys: Any, *, temperature: float = 1.0) -> list[Response]:
        for key in keys:
            self.before(key)
        return super().sample(prompts, keys, temperature=temperature)


def outcomes(results: Sequence[EpisodeResult]) -> list[tuple[Any, ...]]:
    return [(r.job.key, r.success, r.stop, r.steps) for r in results]


def test_results_equal_those_of_batches() -> None:
    wins, detour = (lambda key: key[2] % 2 == 0), (lambda key: key[2] % 3)
    with lamp_vector(3) as vector:
        batched = run_episodes(ScriptedPolicy(wins, detour=detour), vector, jobs_of(9))
        engine = Engine(wins, detour=detour)
        assert isinstance(engine, EngineSampler)
        concurrent = run_episodes(engine, vector, jobs_of(9))
    assert outcomes(concurrent) == outcomes(batched)
    assert set(engine.batches) == {1}


def test_no_desktop_waits_for_the_slowest_response() -> None:
    """The first response of episode 0 comes when all others are over."""
    over, left = threading.Event(), {1, 2, 3}

    def before(key: tuple[int, ...]) -> None:
        if key[2] == 0:
            assert over.wait(DEADLINE), "the other episodes wait for the response of the first one"

    def on_result(result: EpisodeResult) -> None:
        left.discard(result.job.key[2])
        if not left:
            over.set()

    with lamp_vector(2) as vector:
        results = run_episodes(Engine(lambda _: True, before), vector, jobs_of(4), on_result=on_result)
    assert [result.success for result in results] == [True] * 4


class SlowDesktop:
    """Makes blocking desktops whose reset waits for an event, except the first."""

    def __init__(self, go: threading.Event) -> None:
        self.go, self.made = go, 0

    def __call__(self) -> Desktop:
        from bepa_torchrl.testing import LampDesktop

        self.made += 1
        desktop, slow, go = LampDesktop(), self.made > 1, self.go

        class Blocking(LampDesktop):
            blocking = True

            def reset(self, seed: int) -> None:
                assert not slow or go.wait(DEADLINE), "the other episode was not played meanwhile"
                desktop.reset(seed)
                super().reset(seed)

        return Blocking()


def test_a_response_is_sent_while_another_desktop_is_busy() -> None:
    """``receive`` waits for the slow desktop, and is woken by the response for the other one."""
    go = threading.Event()
    with DesktopVector(SlowDesktop(go), 2) as vector:
        results = run_episodes(Engine(lambda _: True), vector, jobs_of(2), on_result=lambda _: go.set())
    assert [result.success for result in results] == [True, True]


def test_an_error_of_the_engine_is_the_callers() -> None:
    def before(key: tuple[int, ...]) -> None:
        if key[2] == 1:
            raise RuntimeError("the engine is gone")

    with lamp_vector(3) as vector, pytest.raises(RuntimeError, match="the engine is gone"):
        run_episodes(Engine(lambda _: True, before), vector, jobs_of(6))


def test_a_prompt_that_does_not_fit_is_not_asked_for() -> None:
    engine = Engine(lambda _: True, max_prompt_bytes=3)
    with lamp_vector(2) as vector:
        results = run_episodes(engine, vector, jobs_of(3))
    assert {result.stop for result in results} == {StopReason.context_full}
    assert engine.batches == []


def test_only_a_concurrent_engine_is_called_by_several_threads() -> None:
    engine = Engine(lambda _: True)
    with make_answers(engine, 1.0, 2, lambda: None) as answers:
        assert isinstance(answers, ConcurrentAnswers)
    engine.concurrent = False
    assert isinstance(make_answers(engine, 1.0, 2, lambda: None), BatchedAnswers)
    assert isinstance(make_answers(ScriptedPolicy(lambda _: True), 1.0, 2, lambda: None), BatchedAnswers)


def test_a_wake_ends_one_wait() -> None:
    go = threading.Event()
    with DesktopVector(SlowDesktop(go), 2) as vector:
        vector.send_reset(1, lamp_task(0), 1)
        vector.wake()
        assert vector.receive() == []
        go.set()
        assert [i for i, _ in vector.receive()] == [1]
