"""A worker whose queue, desktops or threads fail: nothing is renewed for ever, what is lost is replaced or stated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from polling import until

from bepa_torchrl.rollout.group_collector import RolloutSeeds
from bepa_torchrl.scale.rollouts import async_collector, env_worker
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.local_rollouts import local_collector
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.remote.rollout_side import follow
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.testing import LampDesktop, LampEnv, ScriptedPolicy, lamp_task, lamp_vector
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.vector import DesktopVector

TASKS = tuple(lamp_task(number) for number in range(5))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE", "_AFTER_ERROR", "_RETRY_PAUSE"):
        monkeypatch.setattr(env_worker, name, 0.01)


class FailingQueue:
    """A queue that is reached again after a call has failed ``failures`` times; ``tried`` counts its calls."""

    def __init__(self, call: str, failures: int, *, lease_seconds: float = 60.0) -> None:
        self.service = QueueService(batch_groups=1, max_staleness=9, lease_seconds=lease_seconds)
        self._call, self._failures = call, failures
        self.tried = 0

    def __getattr__(self, name: str) -> Any:
        if name != self._call:
            return getattr(self.service, name)

        def call(*args: Any) -> Any:
            self.tried += 1
            if self.tried <= self._failures:
                raise DesktopError(FailureReason.hung, f"an actor did not answer {name}")
            return getattr(self.service, name)(*args)

        return call


@contextmanager
def worker(
    queue: Any, make: Callable[[], DesktopVector] = lambda: lamp_vector(1), **options: Any
) -> Iterator[EnvWorker]:
    service = RolloutService(options.pop("policy", None) or ScriptedPolicy(lambda _: True))
    plan = options.pop("plan", None) or RolloutPlan(TASKS, RolloutSeeds(3, "group"), 1.0, 0)
    settings = {"desktops": 1, "poll": 0.1, "renew_every": 0.05} | options
    made = EnvWorker("node", queue, service, plan, make, **settings)
    try:
        yield made
    finally:
        made.stop(10.0)
        service.close()


def test_a_result_that_the_queue_does_not_take_at_once_is_sent_again() -> None:
    queue = FailingQueue("complete", 2)
    queue.service.admit([0, 0], 3)
    with worker(queue) as made:
        group = queue.service.next_group(60.0)
        assert group is not None
        assert queue.tried == 2 + 3
        assert made.alive() == 1
        assert queue.service.describe().get("requeued") is None


def test_a_result_that_is_never_taken_ends_its_lease_and_the_worker_goes_on() -> None:
    """Every attempt at its first result fails; the slot is given back, and played again."""
    queue = FailingQueue("complete", env_worker._ATTEMPTS)
    queue.service.admit([0, 0], 2)
    with worker(queue) as made:
        group = queue.service.next_group(60.0)
        assert group is not None
        assert queue.service.describe()["requeued"] == 1
        assert made.alive() == 1
        until(lambda: made.describe()["leases"] == 0, "a lease is kept")


@pytest.mark.parametrize("call", ["complete", "fail"])
def test_a_lease_whose_end_the_queue_does_not_take_expires(call: str) -> None:
    """The queue takes neither a result nor its loss: the lease must not be renewed any more."""

    class Deaf(FailingQueue):
        def complete(self, *_: Any) -> None:
            raise DesktopError(FailureReason.hung, "an actor did not answer complete")

        def fail(self, *_: Any) -> None:
            raise DesktopError(FailureReason.hung, "an actor did not answer fail")

    queue = Deaf("", 0, lease_seconds=0.5)
    queue.service.admit([0, 0], 2)

    class Broken(ScriptedPolicy):
        def sample(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("the engine is gone")

    policy = Broken(lambda _: True) if call == "fail" else None
    with worker(queue, policy=policy) as made:
        until(lambda: queue.service.describe().get("requeued", 0) >= 2, "no lease expired")
        assert made.alive() == 1


def test_a_renewal_that_fails_is_tried_again() -> None:
    """The episode is longer than its lease, and the first renewals fail."""
    go_on = threading.Event()

    class Slow(ScriptedPolicy):
        def sample(self, *args: Any, **options: Any) -> Any:
            assert go_on.wait(60.0)
            return super().sample(*args, **options)

    queue = FailingQueue("renew", 2)
    queue.service.admit([0, 0], 1)
    with worker(queue, policy=Slow(lambda _: True)) as made:
        until(lambda: queue.tried > 3, "the lease is not renewed")
        assert made.alive() == 1
        go_on.set()
        assert queue.service.next_group(60.0) is not None


def test_a_worker_whose_renewal_has_ended_is_not_healthy() -> None:
    with worker(FailingQueue("", 0)) as made:
        assert made.alive() == 1
        made._ended.set()  # as if the thread had been ended
        made._others[1].join(30.0)
        assert made.alive() == 0


def test_leases_are_asked_for_again_after_an_error() -> None:
    queue = FailingQueue("lease", 3)
    queue.service.admit([0, 0], 1)
    with worker(queue) as made:
        assert queue.service.next_group(60.0) is not None
        assert made.alive() == 1


# --- desktops ---------------------------------------------------------------------------------------------------------


def test_an_evaluation_states_the_weights_of_the_attempt_that_counts() -> None:
    """The weights change with every turn, and the desktop exits in the first attempt."""

    class Updated(ScriptedPolicy):
        def sample(self, *args: Any, **options: Any) -> Any:
            self.version += 1
            return super().sample(*args, **options)

    clicks = iter([True])
    plan = RolloutPlan(TASKS, RolloutSeeds(3, "group"), 1.0, 1, EvaluationPlan(TASKS[:1], 1, 0, 0.0))
    queue = QueueService(batch_groups=1, max_staleness=0)
    queue.admit_evaluation([0, 0], 1)
    make = partial(lamp_vector, 1, breaks=lambda: next(clicks, False))
    with worker(queue, make, policy=Updated(lambda _: True), plan=plan):
        evaluation = queue.next_evaluation(60.0)
    assert evaluation is not None
    (outcome,) = evaluation.results
    assert outcome["success"]
    assert outcome["versions"][0] > 1  # that was the response after which the desktop exited


class Desktops:
    """Makes vectors, except while there are none."""

    def __init__(self, failures: int | None) -> None:
        self.failures, self.attempts = failures, 0

    def __call__(self) -> DesktopVector:
        self.attempts += 1
        if self.failures is None or self.attempts <= self.failures:
            raise FileNotFoundError("Xvfb is not installed")
        return lamp_vector(1)


def test_a_desktop_that_cannot_be_made_is_stated_and_tried_again_until_it_can() -> None:
    desktops = Desktops(None)
    queue = FailingQueue("", 0)
    queue.service.admit([0, 0], 1)
    with worker(queue, desktops) as made:
        until(lambda: made.alive() == 0, "it still counts as a desktop")
        assert made.state().problem == "FileNotFoundError: Xvfb is not installed"
        desktops.failures = desktops.attempts
        assert queue.service.next_group(60.0) is not None
        assert made.state()[:2] == (1, None)


def test_one_desktop_that_cannot_be_made_does_not_end_the_others() -> None:
    """Of two players one never gets a desktop; the worker plays, and says what is wrong."""
    lock, made_by = threading.Lock(), set[str]()

    def one() -> DesktopVector:
        with lock:
            made_by.add(threading.current_thread().name)
            first = sorted(made_by)[0] == threading.current_thread().name and len(made_by) == 2
        if first:
            return lamp_vector(1)
        raise DesktopError(FailureReason.never_ready, "too slow")

    queue = FailingQueue("", 0)
    queue.service.admit([0, 0], 3)
    with worker(queue, one, desktops=2) as made:
        assert queue.service.next_group(60.0) is not None
        until(lambda: made.alive() == 1, "both are alive")
        made.check()


def test_a_player_survives_a_vector_that_cannot_be_closed() -> None:
    closed = []

    class Stuck(DesktopVector):
        def close(self) -> None:
            closed.append(1)
            raise OSError("the engine does not answer")

    class Dead(LampDesktop):
        def reset(self, seed: int) -> None:
            if len(closed) < 2:
                raise DesktopError(FailureReason.died, f"no display for seed {seed}")
            super().reset(seed)

    queue = FailingQueue("", 0)
    for task in range(4):
        queue.service.admit([task, 0], 1)
    with worker(queue, lambda: Stuck(Dead, 1)) as made:
        until(lambda: made.state().played >= 2, "nothing is played")
        assert len(closed) == 2


def test_desktops_that_fail_with_every_task_are_to_blame() -> None:
    class Dead(LampDesktop):
        def reset(self, seed: int) -> None:
            raise DesktopError(FailureReason.never_ready, f"no user namespaces for seed {seed}")

    queue = FailingQueue("", 0)
    with worker(queue, lambda: DesktopVector(Dead, 1)) as made:
        for task in range(3):
            assert made.state().sick is None
            queue.service.admit([task, 0], 1)
            until(lambda wanted=task + 1: len(made._failed_tasks) == wanted, "the episode was not played")
        assert made.state().sick == "3 tasks in a row failed on all its desktops, the last one, lamp-2: never_ready"


def test_a_task_that_always_fails_is_not_held_against_the_desktops() -> None:
    queue = FailingQueue("", 0)
    service = RolloutService(ScriptedPolicy(lambda _: True))
    plan = RolloutPlan((lamp_task(0, infected=True), *TASKS[1:]), RolloutSeeds(3, "group"), 1.0, 0)
    made = EnvWorker("node", queue, service, plan, lambda: lamp_vector(1), desktops=1, poll=0.1)
    for task in (0, 0, 0, 0, 1):
        queue.service.admit([task, 0], 1)
    until(lambda: made.state().played == 1, "the last episode was not played")
    assert made.state().sick is None
    assert made.alive() == 1
    made.stop(10.0)
    service.close()


def test_a_run_without_any_desktop_ends_soon_and_says_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_collector, "_CHECK_EVERY", 0.1)
    learner: Any = ScriptedPolicy(lambda _: True)
    learner.named_weights = lambda: iter(())
    collector = local_collector(
        LampEnv(lamp_vector(1)),
        learner,
        TASKS,
        sampler=ScriptedPolicy(lambda _: True),
        make_vector=Desktops(None),
        desktops=3,
        max_rows=8,
        max_staleness=0,
        order="admission",
        groups=2,
        group_size=2,
        stall_seconds=3600.0,
    )
    with caplog.at_level(logging.CRITICAL), pytest.raises(DesktopError, match=r"none of 3 could be made .*Xvfb is not"):
        collector.rollout()
    collector.shutdown()


def test_the_rollout_side_ends_without_any_desktop() -> None:
    class Nothing:
        def next_weights(self, *_: Any) -> None:
            return None

    with worker(FailingQueue("", 0), Desktops(None)) as made:
        until(lambda: made.alive() == 0, "it still counts as a desktop")
        with pytest.raises(DesktopError, match=r"no desktop is left: none of 1 could be made in 4 attempts in a row"):
            follow(Nothing(), lambda *_: None, check=made.check, note=lambda _: None)
