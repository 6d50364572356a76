"""A policy that samples for several threads at once: turns overlap, weights change only while nothing is sampled."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.scale.engine.errors import EngineError, WeightSyncError
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.testing import ScriptedPolicy
from osworld_gym.types import PromptContext

PROMPT = Prompt(torch.zeros(1, dtype=torch.int64), ())
KEY = (0, 0, 0, 0, 0)


class Engine(ScriptedPolicy):
    """An engine whose calls end when ``done`` is set; counts the threads inside."""

    def __init__(self, *, concurrent: bool = True) -> None:
        super().__init__(lambda _: True)
        self.concurrent, self.closed = concurrent, False
        self.inside = self.most = 0
        self.entered, self.done = threading.Semaphore(0), threading.Event()
        self._lock = threading.Lock()

    def sync(self) -> None:
        pass

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], *, temperature: float = 1.0
    ) -> list[Response]:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.entered.release()
        ended = self.done.wait(20.0)
        with self._lock:
            self.inside -= 1
        assert ended
        return super().sample(prompts, keys, temperature=temperature)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        assert self.inside == 0
        assert not list(weights)
        self.version = version

    def drain_metrics(self) -> dict[str, float]:
        return {"engine/restarts": 3.0}

    def close(self) -> None:
        self.closed = True


@contextmanager
def served(engine: Any, **options: Any) -> Iterator[tuple[RolloutService, ThreadPoolExecutor]]:
    service = RolloutService(engine, **options)
    with ThreadPoolExecutor(4) as callers:
        try:
            yield service, callers
        finally:
            engine.done.set()
    service.close()


def enter(engine: Engine, count: int) -> None:
    for _ in range(count):
        assert engine.entered.acquire(timeout=20.0)


def test_calls_overlap_and_weights_wait_for_them() -> None:
    engine = Engine()
    with served(engine) as (service, callers):
        turns = [callers.submit(service.sample, [PROMPT], [KEY], 1.0) for _ in range(2)]
        enter(engine, 2)  # both are inside
        assert service.render([PromptContext("a", [b""])])  # does not wait for them
        load = callers.submit(service.load_weights, [], 5)
        engine.done.set()
        load.result(20.0)
        assert [turn.result(20.0)[1] for turn in turns] == [0, 0]
        assert service.sample([PROMPT], [KEY], 1.0)[1] == service.version() == 5
        assert service.engine_metrics() == {"engine/restarts": 3.0}
    assert engine.closed


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_a_call_waits_while_weights_are_loaded(concurrent: bool, fails: bool) -> None:
    """If they cannot be loaded, it gets no response with the weights before."""
    engine, loading, go = Engine(concurrent=concurrent), threading.Event(), threading.Event()
    load = engine.load_weights

    def slow(weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        loading.set()
        assert go.wait(20.0)
        if fails:
            raise WeightSyncError("other weights")
        load(weights, version=version)

    engine.load_weights = slow  # type: ignore[method-assign]
    engine.done.set()
    with served(engine) as (service, callers):
        loaded = callers.submit(service.load_weights, [], 1)
        assert loading.wait(20.0)
        turn = callers.submit(service.sample, [PROMPT], [KEY], 1.0)
        assert not engine.entered.acquire(timeout=0.2)
        go.set()
        if fails:
            for call, problem in ((loaded, "^other weights"), (turn, "the rollout service has failed: other weights")):
                with pytest.raises(RuntimeError, match=problem):
                    call.result(20.0)
            return
        loaded.result(20.0)
        assert turn.result(20.0)[1] == 1


def test_a_call_that_does_not_end_is_an_error_of_the_load() -> None:
    engine = Engine()
    with served(engine, deadline=3.0) as (service, callers):
        turn = callers.submit(service.sample, [PROMPT], [KEY], 1.0)
        enter(engine, 1)
        with pytest.raises(TimeoutError, match="1 calls of the policy have not ended in 3 s"):
            service.load_weights([], 1)
        engine.done.set()
        assert turn.result(20.0)[1] == 0
        with pytest.raises(RuntimeError, match="1 calls of the policy have not ended"):
            service.sample([PROMPT], [KEY], 1.0)  # nothing is sampled with older weights than the trainer's
        service.load_weights([], 2)
        assert service.sample([PROMPT], [KEY], 1.0)[1] == 2


@pytest.mark.parametrize("concurrent", [True, False])
def test_nothing_is_sampled_before_the_weights_are_loaded_nor_with_a_failed_engine(concurrent: bool) -> None:
    engine = Engine(concurrent=concurrent)
    engine.done.set()
    load = engine.load_weights
    with served(engine, require_weights=True, deadline=20.0) as (service, callers):
        turn = callers.submit(service.sample, [PROMPT], [KEY], 1.0)
        assert not engine.entered.acquire(timeout=0.2)
        service.load_weights([], 4)
        assert turn.result(20.0)[1] == 4
        engine.load_weights = fails(WeightSyncError("other weights"))  # type: ignore[method-assign]
        with pytest.raises(WeightSyncError):
            service.load_weights([], 5)
        with pytest.raises(RuntimeError, match="the rollout service has failed: other weights"):
            service.sample([PROMPT], [KEY], 1.0)
        engine.load_weights = load  # type: ignore[method-assign]
        service.load_weights([], 6)
        assert service.sample([PROMPT], [KEY], 1.0)[1] == 6
        assert service.failure() is None
        engine.sample = fails(EngineError("max_restarts"))  # type: ignore[method-assign]
        for problem in ("^max_restarts", "the rollout service has failed: max_restarts"):
            with pytest.raises(RuntimeError, match=problem):
                service.sample([PROMPT], [KEY], 1.0)
        assert service.failure() == service.describe()["failure"] == "EngineError: max_restarts"


def fails(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


@pytest.mark.parametrize("concurrent", [True, False])
def test_a_closed_service_answers_at_once(concurrent: bool) -> None:
    engine = Engine(concurrent=concurrent)
    engine.done.set()
    with served(engine) as (service, _):
        pass
    for call in (
        lambda: service.sample([PROMPT], [KEY], 1.0),
        lambda: service.render([PromptContext("a", [b""])]),
        lambda: service.load_weights([], 1),
    ):
        with pytest.raises(RuntimeError, match="the rollout service is closed"):
            call()


def test_an_engine_that_cannot_is_called_by_one_thread() -> None:
    engine = Engine(concurrent=False)
    engine.done.set()
    with served(engine) as (service, callers):
        turns = [callers.submit(service.sample, [PROMPT], [KEY], 1.0) for _ in range(8)]
        assert all(turn.result(20.0)[1] == 0 for turn in turns)
    assert engine.most == 1
    assert engine.closed
