"""Asynchronous rollouts in one process: real episodes, threads as workers, the queue and one rollout service."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import number, row_list
from bepa_torchrl.distributed import env_worker
from bepa_torchrl.distributed.async_collector import AsyncGroupCollector, AsyncIteration
from bepa_torchrl.distributed.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.distributed.evaluations import EvaluationPlan
from bepa_torchrl.distributed.queue_service import QueueService
from bepa_torchrl.distributed.rollout_service import RolloutService, ServedPolicy
from bepa_torchrl.distributed.task_queue import Lease
from bepa_torchrl.evaluation.success_rate import evaluate
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector, RolloutSeeds
from bepa_torchrl.testing import LampEnv, Place, ScriptedPolicy, lamp_task, lamp_vector, summary
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector

GROUPS, SIZE = 2, 3


class Learner(ScriptedPolicy):
    """A scripted policy without weights that a trainer can publish."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def wins(place: Place) -> bool:
    """About half of the episodes, determined by the seed key."""
    return hash(place) % 2 == 0


@contextmanager
def collector(
    tasks: Sequence[Task] | None = None,
    *,
    staleness: int = 0,
    order: str = "admission",
    workers: int = 2,
    delay: Callable[[Place], float] = lambda _: 0.0,
    lease_seconds: float = 30.0,
    state: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[AsyncGroupCollector]:
    class Slow(ScriptedPolicy):
        def sample(
            self, prompts: Sequence[Prompt], keys: Sequence[Place], *, temperature: float = 1.0
        ) -> list[Response]:
            time.sleep(max((delay(key) for key in keys), default=0.0))
            return super().sample(prompts, keys, temperature=temperature)

    tasks = [lamp_task(n) for n in range(5)] if tasks is None else tasks
    queue = QueueService(batch_groups=GROUPS, max_staleness=staleness, order=order, lease_seconds=lease_seconds)
    service, env = RolloutService(Slow(wins)), LampEnv(lamp_vector(1))
    learner: Any = Learner(wins)
    made = AsyncGroupCollector(
        env,
        learner,
        tasks,
        groups=GROUPS,
        group_size=SIZE,
        seed=3,
        queue=queue,
        publish=service.load_weights,
        **options,
    )
    if state is not None:
        made.load_state_dict(state)  # type: ignore[arg-type]
    nodes = [
        EnvWorker(f"node{n}", queue, service, made.plan, lambda: lamp_vector(1), desktops=2, renew_every=0.1, poll=0.1)
        for n in range(workers)
    ]
    try:
        yield made
    finally:
        for node in nodes:
            node.stop(10.0)
        service.close()
        made.shutdown()


def lock_step(count: int) -> list[list[tuple[Any, ...]]]:
    made = GroupRolloutCollector(
        LampEnv(lamp_vector(4)), Learner(wins), [lamp_task(n) for n in range(5)], groups=GROUPS, group_size=SIZE, seed=3
    )
    batches = [summary(batch) for batch in islice(made, count)]
    made.shutdown()
    return batches


def test_without_staleness_the_batches_are_those_of_lock_step() -> None:
    with collector() as made:
        assert [summary(batch) for batch in islice(made, 4)] == lock_step(4)


@pytest.mark.parametrize("order", ["admission", "completion"])
def test_rows_have_the_version_that_sampled_them_and_ages_are_reported(order: str) -> None:
    """Group 0's episodes are slow, so that completion order trains others first; nothing is trained twice."""
    groups: Counter[int] = Counter()
    seen: list[AsyncIteration] = []
    slow = lambda place: 0.3 if place[1] == 0 else 0.0  # noqa: E731
    with collector(staleness=2, order=order, delay=slow) as made:
        for batch in islice(made, 6):
            groups.update({number(row, K.GROUP_ID) for row in row_list(batch)})
            assert isinstance(made.last, AsyncIteration)
            seen.append(made.last)
            lags = [made.rollout_policy.version - number(row, K.POLICY_VERSION) for row in row_list(batch)]
            assert sorted(lags) == sorted(made.last.version_lags)
            assert min(lags) >= 0
            made.rollout_policy.version += 1  # the update
    assert set(groups.values()) == {1}
    ages = [age for iteration in seen for age in iteration.ages]
    assert len(ages) == 6 * GROUPS
    assert max(ages) > 0  # the queue ran ahead
    if order == "admission":
        assert sorted(groups) == list(range(6 * GROUPS))
        assert max(ages) <= 2
        assert max(max(iteration.version_lags) for iteration in seen) <= 2
    assert seen[-1].metrics()["staleness_max"] == max(seen[-1].ages)


def test_a_worker_that_is_gone_loses_no_group() -> None:
    """A node leases slots and is never heard of again: its leases expire, and others play them."""
    with collector(workers=0, lease_seconds=0.5) as made:
        batches: list[Any] = []
        thread = threading.Thread(target=lambda: batches.extend(summary(batch) for batch in islice(made, 2)))
        thread.start()
        queue: Any = made.queue
        assert len(queue.lease("gone", 3, 10.0)) == 3
        service = RolloutService(ScriptedPolicy(wins))
        node = EnvWorker(
            "node", queue, service, made.plan, lambda: lamp_vector(1), desktops=2, renew_every=0.1, poll=0.1
        )
        thread.join(60.0)
        described = queue.describe()
        node.stop(10.0)
        service.close()
    assert batches == lock_step(2)
    assert described["requeued"] >= 3


def test_a_worker_has_one_call_at_the_queue_and_gives_back_what_it_cannot_play() -> None:
    """Four desktops wait with one call for four slots; a lease that arrives after the end is failed, not renewed."""

    class Recorder:
        def __init__(self) -> None:
            self.limits: list[int] = []
            self.failed: list[tuple[str, str]] = []
            self.asked, self.answer = threading.Event(), threading.Event()

        def lease(self, _worker: str, limit: int, _timeout: float) -> list[Lease]:
            self.limits.append(limit)
            if limit < 4:
                return []
            self.asked.set()
            self.answer.wait(30.0)
            return [Lease("0-1", 0, 0, [0, 0], 1)]

        def renew(self, tickets: list[str]) -> list[str]:
            raise AssertionError(f"{tickets} were renewed")

        def fail(self, ticket: str, reason: str) -> None:
            self.failed.append((ticket, reason))

    recorder: Any = Recorder()
    service, plan = RolloutService(ScriptedPolicy(wins)), RolloutPlan((lamp_task(0),), RolloutSeeds(3, "group"), 1.0, 0)
    node = EnvWorker("node", recorder, service, plan, lambda: lamp_vector(1), desktops=4, renew_every=60.0, poll=0.1)
    assert recorder.asked.wait(30.0)
    ending = threading.Thread(target=node.stop, args=(30.0,))
    ending.start()
    deadline = time.monotonic() + 30.0
    while node.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    recorder.answer.set()
    ending.join(30.0)
    service.close()
    assert recorder.limits[-1] == 4
    assert recorder.failed == [("0-1", "node has ended")]


EVALUATION = EvaluationPlan((lamp_task(7), lamp_task(8)), episodes=2, seed=5, temperature=1.0)


def test_evaluations_change_nothing_in_the_training_and_are_those_of_lock_step() -> None:
    """Requested after the first two updates; the batches are still those without evaluations."""
    with collector(evaluation=EVALUATION) as made:
        batches, found = [], []
        for batch in islice(made, 4):
            batches.append([row[:-1] for row in summary(batch)])
            made.rollout_policy.version += 1
            if len(batches) <= 2:
                made.evaluate(len(batches))
            found += made.finished_evaluations()
        found += made.remaining_evaluations()
    assert batches == [[row[:-1] for row in batch] for batch in lock_step(4)]
    expected = evaluate(ScriptedPolicy(wins), lamp_vector(1), EVALUATION.tasks, episodes=2, temperature=1.0, seed=5)
    assert [(each.iteration, each.version) for each in found] == [(1, 1), (2, 2)]
    for each in found:
        assert each.counts == expected
        assert [(e["task_id"], e["episode"]) for e in each.episodes] == [
            (f"lamp-{n}", e) for n in (7, 8) for e in (0, 1)
        ]
        assert all(each.version <= e["versions"][0] <= e["versions"][-1] <= 4 for e in each.episodes)
        assert {e["requested_version"] for e in each.episodes} == {each.version}
        assert each.metrics()["version_lag_max"] == max(e["versions"][-1] for e in each.episodes) - each.version


def test_an_evaluation_that_is_slow_does_not_hold_up_the_training_and_survives_a_resume() -> None:
    """One of its episodes is leased by a worker that never ends; three batches are trained meanwhile."""
    with collector(workers=0, staleness=1, evaluation=EVALUATION) as made:
        queue: Any = made.queue
        made.evaluate(0)
        (stuck,) = queue.lease("slow", 1, 1.0)
        assert stuck.evaluation
        service = RolloutService(ScriptedPolicy(wins))
        node = EnvWorker(
            "node", queue, service, made.plan, lambda: lamp_vector(1), desktops=2, renew_every=0.1, poll=0.1
        )
        assert len(list(islice(made, 3))) == 3
        while queue.describe()["waiting_evaluation_slots"]:  # the three others are played
            time.sleep(0.01)
        assert made.finished_evaluations() == []
        node.stop(10.0)
        service.close()
        state = json.loads(json.dumps(made.state_dict()))
    with collector(staleness=1, evaluation=EVALUATION, state=state) as resumed:
        (found,) = resumed.remaining_evaluations()
        assert resumed.remaining_evaluations() == []
    assert (found.iteration, found.version, len(found.episodes)) == (0, 0, 4)


def test_a_group_that_always_fails_is_dropped_and_replaced() -> None:
    tasks = [lamp_task(0, infected=True), *(lamp_task(n) for n in range(1, 5))]
    with collector(tasks, retries=0) as made:
        dropped: list[str] = []
        failed = 0.0
        for batch in islice(made, 3):
            assert len({number(row, K.GROUP_ID) for row in row_list(batch)}) == GROUPS
            assert made.last is not None
            dropped += made.last.requeued
            failed += made.last.metrics()["failed_setup_failed"]
            assert "lamp-0" not in {row[K.TASK_ID] for row in row_list(batch)}
        assert dropped
        assert set(dropped) == {"lamp-0"}
        assert failed == SIZE * len(dropped)


def test_a_run_whose_sampler_is_broken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would drop groups without end: every episode fails, and is never a reward."""

    class Broken(ScriptedPolicy):
        def sample(self, *_: Any, **__: Any) -> list[Response]:
            raise RuntimeError("the engine is gone")

    monkeypatch.setattr(env_worker, "_AFTER_ERROR", 0.01)
    with collector(workers=0) as made:
        service = RolloutService(Broken(wins))
        node = EnvWorker("node", made.queue, service, made.plan, lambda: lamp_vector(1), desktops=2, poll=0.1)
        with pytest.raises(
            DesktopError, match=r"no group of 3 tasks in a row had two valid .* RuntimeError: the engine is gone"
        ):
            made.rollout()
        node.stop(10.0)
        service.close()


def test_a_desktop_that_cannot_be_made_is_tried_again_and_then_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker gets its desktop at the second attempt; that of the other is never made."""
    attempts = []

    def late() -> DesktopVector:
        attempts.append(1)
        if len(attempts) == 1:
            raise DesktopError(FailureReason.never_ready, "too slow")
        return lamp_vector(1)

    def never() -> DesktopVector:
        raise FileNotFoundError("Xvfb is not installed")

    monkeypatch.setattr(env_worker, "_PAUSE", 0.05)
    with collector(workers=0) as made:
        service = RolloutService(ScriptedPolicy(wins))
        queue: Any = made.queue
        nodes = [
            EnvWorker(f"n{n}", queue, service, made.plan, make, desktops=1) for n, make in enumerate((late, never))
        ]
        assert len(list(islice(made, 1))) == 1
        end = time.monotonic() + 30.0
        while nodes[1].alive():
            assert time.monotonic() < end
            time.sleep(0.01)
        assert nodes[0].state() == (1, None)
        assert nodes[1].state() == (0, "FileNotFoundError: Xvfb is not installed")
        for node in nodes:
            node.stop(10.0)
        service.close()


def test_a_stall_ends_with_what_every_lease_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    with collector(workers=0, stall_seconds=0.3, on_stall=lambda: {"workers": {"stuck": "a call"}}) as made:
        made._admit()
        queue: Any = made.queue
        queue.lease("stuck", 1, 1.0)
        with pytest.raises(DesktopError, match=r'no group was finished for 0 s; check the workers.*"worker": "stuck"'):
            made.rollout()
    (dump,) = [record.getMessage() for record in caplog.records if "what each part waits for" in record.getMessage()]
    found = json.loads(dump.partition("\n")[2])
    assert found["workers"] == {"stuck": "a call"}
    assert "rollout_service.py" in found["trainer"]["threads"]["rollout service"]


def test_a_resumed_run_trains_the_groups_that_were_not_trained() -> None:
    with collector(staleness=1) as made:
        first = [summary(batch) for batch in islice(made, 2)]
        state = json.loads(json.dumps(made.state_dict()))
    with collector(staleness=1, state=state) as resumed:
        second = [summary(batch) for batch in islice(resumed, 2)]
    with collector(staleness=1) as straight:
        assert first + second == [summary(batch) for batch in islice(straight, 4)]


def test_the_service_batches_what_waits_and_passes_errors_on() -> None:
    started, go_on = threading.Event(), threading.Event()

    class Blocking(ScriptedPolicy):
        def sample(
            self, prompts: Sequence[Prompt], keys: Sequence[Place], *, temperature: float = 1.0
        ) -> list[Response]:
            started.set()
            assert go_on.wait(30.0)
            if temperature == 2.0:
                raise RuntimeError("too hot")
            return super().sample(prompts, keys, temperature=temperature)

    policy = Blocking(wins)
    service = RolloutService(policy)
    prompt = Prompt(torch.zeros(1, dtype=torch.int64), ())
    results: dict[int, Any] = {}

    def ask(caller: int, temperature: float = 1.0) -> None:
        served = ServedPolicy(service)
        try:
            results[caller] = (served.sample([prompt], [(0, 0, caller, 0, 9)], temperature=temperature), served.version)
        except RuntimeError as error:
            results[caller] = error

    threads = [threading.Thread(target=ask, args=(0,))]
    threads[0].start()
    assert started.wait(30.0)
    threads += [threading.Thread(target=ask, args=(caller,)) for caller in range(1, 5)]
    for thread in threads[1:]:
        thread.start()
    end = time.monotonic() + 30.0
    while service._requests.qsize() < 4:
        assert time.monotonic() < end
        time.sleep(0.01)
    loader = threading.Thread(target=lambda: service.load_weights([], 7))
    loader.start()
    while service._requests.qsize() < 5:
        assert time.monotonic() < end
        time.sleep(0.01)
    threads.append(threading.Thread(target=ask, args=(5, 2.0)))
    threads[-1].start()
    go_on.set()
    for thread in (*threads, loader):
        thread.join(30.0)
    service.close()
    assert policy.batches == [1, 4]
    assert [results[caller][1] for caller in range(5)] == [0] * 5
    assert str(results[5]) == "too hot"
    assert service.version() == 7
