"""Asynchronous rollouts in one process: real episodes, threads as workers, the queue and one rollout service."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import pytest
import torch
from lamp_groups import GROUPS, SIZE, Learner, lock_step, wins
from polling import until

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.provenance import Provenance, mark
from bepa_torchrl.data.step_rows import int_entry, row_list
from bepa_torchrl.evaluation.success_rate import evaluate
from bepa_torchrl.monitoring.status import method_status, report
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector, RolloutSeeds
from bepa_torchrl.rollout.prefix import PrefixLengths, prefix_metrics
from bepa_torchrl.rollout.weight_sync import ServiceWeightSync
from bepa_torchrl.scale.rollouts import async_collector, env_worker
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector, AsyncIteration
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService, ServedSampler
from bepa_torchrl.scale.rollouts.task_queue import Lease
from bepa_torchrl.testing import LampDesktop, LampEnv, ScriptedPolicy, SeedKey, lamp_task, lamp_vector, summary
from bepa_torchrl.training.rank_failures import RankLostError
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.task import Task
from osworld_gym.vector import DesktopVector


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_worker, "_AFTER_ERROR", 0.01)


@contextmanager
def collector(
    tasks: Sequence[Task] | None = None,
    *,
    staleness: int = 0,
    order: str = "admission",
    workers: int = 2,
    delay: Callable[[SeedKey], float] = lambda _: 0.0,
    lease_seconds: float = 30.0,
    state: dict[str, Any] | None = None,
    won: Callable[[SeedKey], bool] = wins,
    **options: Any,
) -> Iterator[AsyncGroupCollector]:
    class Slow(ScriptedPolicy):
        def sample(
            self, prompts: Sequence[Prompt], keys: Sequence[SeedKey], *, temperature: float = 1.0
        ) -> list[Response]:
            time.sleep(max((delay(key) for key in keys), default=0.0))
            return super().sample(prompts, keys, temperature=temperature)

    tasks = [lamp_task(n) for n in range(5)] if tasks is None else tasks
    queue = QueueService(batch_groups=GROUPS, max_staleness=staleness, order=order, lease_seconds=lease_seconds)
    service, env = RolloutService(Slow(won)), LampEnv(lamp_vector(1))
    learner: Any = Learner(won)
    made = AsyncGroupCollector(
        env,
        learner,
        tasks,
        groups=GROUPS,
        group_size=SIZE,
        seed=3,
        queue=queue,
        weight_sync_schemes={"policy": ServiceWeightSync(service.load_weights)},
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


def test_without_staleness_the_batches_are_those_of_lock_step() -> None:
    with collector() as made:
        assert [summary(batch) for batch in islice(made, 4)] == lock_step(4)


@pytest.mark.parametrize("order", ["admission", "completion"])
def test_rows_have_the_version_that_sampled_them_and_ages_are_reported(order: str) -> None:
    """Group 0's episodes are slow, so that completion order trains others first; nothing is trained twice."""
    groups: Counter[int] = Counter()
    seen: list[AsyncIteration] = []
    slow = lambda key: 0.3 if key[1] == 0 else 0.0  # noqa: E731
    with collector(staleness=2, order=order, delay=slow) as made:
        for batch in islice(made, 6):
            groups.update({int_entry(row, K.GROUP_ID) for row in row_list(batch)})
            assert isinstance(made.last, AsyncIteration)
            seen.append(made.last)
            lags = [made.rollout_policy.version - int_entry(row, K.POLICY_VERSION) for row in row_list(batch)]
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


def test_further_groups_are_admitted_in_the_place_of_those_without_a_signal() -> None:
    """Tasks 0 and 1 have none: a batch has two groups of the three others, and those that it replaced."""
    silent = {"lamp-0", "lamp-1"}
    with collector(further=3, has_signal=lambda task, _: task not in silent) as made:
        for batch in islice(made, 3):
            made.rollout_policy.version += 1
            assert isinstance(made.last, AsyncIteration)
            members = {result.job.group_id: result.job.task.id for result in made.last.results}
            signals = [task not in silent for task in members.values()]
            metrics = made.last.metrics()
            assert metrics["groups_without_signal"] == signals.count(False)
            assert metrics["groups_further"] == min(3, signals.count(False))
            assert metrics["episodes_further"] == SIZE * metrics["groups_further"]
            assert len(made.last.ages) == GROUPS == signals.count(True)
            assert {int_entry(row, K.GROUP_ID) for row in row_list(batch)} == set(members)
        described: Any = made.queue.describe()
        assert described["dropped"] > 0


def test_prefixes_are_those_of_lock_step_and_travel_with_the_plan() -> None:
    """The first task has a trace of two steps: its second and fourth group start after the first of them."""
    job = EpisodeJob(lamp_task(0), (0, 0, 0, 0), 77)
    with lamp_vector(1) as vector:
        (won,) = run_episodes(ScriptedPolicy(lambda _: True), vector, [job])
    traces = TaskTraceCache()
    traces.put("lamp-0", mark(won.rows, Provenance("oracle", env_seed=77)))
    tasks = [lamp_task(n) for n in range(2)]
    sync = GroupRolloutCollector(
        LampEnv(lamp_vector(4)),
        ScriptedPolicy(lambda _: False),
        tasks,
        groups=GROUPS,
        group_size=SIZE,
        seed=3,
        prefixes=PrefixLengths(traces),
    )
    expected = [(summary(batch), prefix_metrics(sync.last.results)) for batch in islice(sync, 4)]
    sync.shutdown()
    with collector(tasks, won=lambda _: False, prefixes=PrefixLengths(traces)) as made:
        found = []
        for batch in islice(made, 4):
            assert made.last is not None
            found.append((summary(batch), prefix_metrics(made.last.results)))
            json.dumps(made.queue.state_dict())
    assert found == expected
    assert [metrics.get("replayed_steps") for _, metrics in found] == [None, 3.0, None, 3.0]


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

        def fail(self, ticket: str, reason: str, _result: Any = None) -> None:
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


def test_a_group_that_always_fails_is_dropped_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    """Its episodes fail on both workers, which is counted and stated."""
    tasks = [lamp_task(0, infected=True), *(lamp_task(n) for n in range(1, 5))]
    with collector(tasks, retries=0, lease_seconds=600.0) as made:
        until(lambda: made.queue.describe()["desktops"] == 4, "the queue does not know both workers")
        dropped: list[str] = []
        failed = 0.0
        for batch in islice(made, 3):
            assert len({int_entry(row, K.GROUP_ID) for row in row_list(batch)}) == GROUPS
            assert made.last is not None
            dropped += made.last.requeued
            failed += made.last.metrics()["failed_setup_failed"]
            assert "lamp-0" not in {row[K.TASK_ID] for row in row_list(batch)}
        assert dropped
        assert set(dropped) == {"lamp-0"}
        assert failed == 2 * SIZE * len(dropped)
    reports = [record.getMessage() for record in caplog.records if "is dropped" in record.getMessage()]
    assert len(reports) == len(dropped)
    assert all("setup_failed in every attempt (attempt 2 of 5)" in report for report in reports)


def test_a_dropped_group_counts_as_one_without_a_signal() -> None:
    """As in lock-step collection."""
    tasks = [lamp_task(0, infected=True), *(lamp_task(n) for n in range(1, 5))]
    with collector(tasks, retries=0, lease_seconds=600.0, further=1, has_signal=lambda *_: True) as made:
        until(lambda: made.queue.describe()["desktops"] == 4, "the queue does not know both workers")
        counts = []
        for _ in islice(made, 3):
            assert made.last is not None
            counts.append((made.last.metrics()["groups_without_signal"], len(made.last.requeued)))
    assert all(counted == dropped for counted, dropped in counts)
    assert sum(dropped for _, dropped in counts) > 0


def test_a_worker_whose_desktops_fail_does_not_swallow_the_run() -> None:
    """Every episode of one worker fails at reset; the other plays them all, and the batches are those of lock-step."""

    class NoNamespaces(LampDesktop):
        def reset(self, seed: int) -> None:
            raise DesktopError(FailureReason.never_ready, f"no user namespaces for seed {seed}")

    with collector(workers=0, lease_seconds=600.0) as made:
        batches: list[Any] = []
        thread = threading.Thread(target=lambda: batches.extend(summary(batch) for batch in islice(made, 4)))
        thread.start()
        service, queue = RolloutService(ScriptedPolicy(wins)), cast(Any, made.queue)
        (lease,) = queue.lease("good", 1, 30.0)  # the queue knows that there is another worker
        queue.fail(lease.ticket, "it has not started yet")
        makes = (lambda: DesktopVector(NoNamespaces, 1), lambda: lamp_vector(1))
        bad = EnvWorker("bad", queue, service, made.plan, makes[0], desktops=2, poll=0.1)
        until(lambda: queue.describe().get("requeued", 0) >= 3, "no episode of the bad worker was requeued")
        good = EnvWorker("good", queue, service, made.plan, makes[1], desktops=2, poll=0.1)
        thread.join(60.0)
        assert queue.describe().get("given_up") is None
        for node in (bad, good):
            node.stop(10.0)
        service.close()
    assert batches == lock_step(4)


def test_without_another_worker_a_failed_episode_is_not_tried_again() -> None:
    """As in lock-step: an attempt and its retries, then the failure is the result."""
    tasks = [lamp_task(0, infected=True), *(lamp_task(n) for n in range(1, 5))]
    with collector(tasks, workers=1, retries=1) as made:
        results = []
        for _ in islice(made, 3):
            assert made.last is not None
            results += [result for result in made.last.results if result.job.task.id == "lamp-0"]
        assert len(results) >= SIZE
        assert {result.failures for result in results} == {(FailureReason.setup_failed,) * 2}


@pytest.mark.slow
def test_a_run_whose_sampler_is_broken_ends() -> None:
    """It would drop groups without end: every episode fails, and is never a reward."""

    class Broken(ScriptedPolicy):
        def sample(self, *_: Any, **__: Any) -> list[Response]:
            raise RuntimeError("the engine is gone")

    with collector(workers=0) as made:
        service = RolloutService(Broken(wins))
        node = EnvWorker("node", made.queue, service, made.plan, lambda: lamp_vector(1), desktops=2, poll=0.1)
        with pytest.raises(
            DesktopError, match=r"no group of 3 tasks in a row had two valid .* RuntimeError: the engine is gone"
        ):
            made.rollout()
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


def test_the_loss_of_another_rank_ends_the_wait_for_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 takes part in nothing then that would fail by itself."""
    monkeypatch.setattr(async_collector, "_CHECK_EVERY", 0.02)
    lost = iter([None, None, RankLostError("rank 1 of 2 ended with code 9")])

    def check_trainer() -> None:
        if (error := next(lost)) is not None:
            raise error

    with (
        collector(workers=0, check_trainer=check_trainer) as made,
        pytest.raises(RankLostError, match="rank 1 of 2 ended with code 9"),
    ):
        made.rollout()
    assert next(lost, "none left") == "none left"


class FinishingOthers:
    """A queue whose first group is late while one other group after the other is finished."""

    def __init__(self, queue: Any, others: int) -> None:
        self._queue, self._others, self.asked = queue, others, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def next_group(self, timeout: float) -> Any:
        self.asked += 1
        if self.asked > self._others:
            return self._queue.next_group(60.0)
        time.sleep(timeout)
        return None

    def finished_groups(self) -> int:
        return min(self.asked, self._others)


def test_it_is_no_stall_while_other_groups_are_finished() -> None:
    """In order of admission the first group takes five times the limit, and nine others are finished meanwhile."""
    with collector(stall_seconds=0.1) as made:
        late: Any = FinishingOthers(made.queue, 9)
        made.queue = late
        assert summary(next(iter(made))) == lock_step(1)[0]
    assert late.asked > 9


def test_a_result_of_another_slot_is_refused() -> None:
    class Mixed(FinishingOthers):
        def next_group(self, _: float) -> Any:
            group = self._queue.next_group(60.0)
            return replace(group, results=tuple(reversed(group.results)))

    with collector() as made:
        made.queue = Mixed(made.queue, 0)  # type: ignore[assignment]
        with pytest.raises(
            RuntimeError, match=r"group 0: expected the result of slot 0 of task .* got one of group 0, s"
        ):
            made.rollout()


def test_a_group_without_one_of_its_slots_is_refused() -> None:
    class Short(FinishingOthers):
        def next_group(self, _: float) -> Any:
            group = self._queue.next_group(60.0)
            return replace(group, results=group.results[1:])

    with collector() as made:
        made.queue = Short(made.queue, 0)  # type: ignore[assignment]
        with pytest.raises(RuntimeError, match=r"group 0: expected 3 slots, got 2"):
            made.rollout()


def test_the_use_of_desktops_and_the_depth_of_the_queue_are_metrics() -> None:
    """Two workers with two desktops each, that play nearly all the time: 8 groups wait for them."""
    with collector(staleness=4, delay=lambda _: 0.05) as made:
        until(lambda: made.queue.describe()["desktops"] == 4, "the queue does not know all desktops")
        for _ in islice(made, 3):
            assert isinstance(made.last, AsyncIteration)
        found = made.last.metrics()
    assert found["desktops_known"] == 4.0
    assert 0.0 < found["busy_seconds"] <= found["desktop_seconds"] * (1 + 1e-9)  # sums of the same intervals
    assert found["queue_waiting_slots"] + found["queue_open_groups"] + found["queue_finished_groups"] > 0
    line = {"iteration": 1, "phase": "rl", **{f"collect/{name}": value for name, value in found.items()}}
    line |= dict.fromkeys(("total/seconds", "total/episodes", "total/optimizer_steps"), 1.0)
    status = method_status([line], 10, finished=False)
    assert status["utilisation"] == pytest.approx(found["busy_seconds"] / found["desktop_seconds"], abs=1e-3)
    assert status["queue"]["open_groups"] == found["queue_open_groups"]
    method = status | {"seconds_since_last": 1, "checkpoint": 1}
    whole = {"folder": "runs/x", "running": True, "finished": False, "preparing": 0, "methods": {"m": method}}
    lines = [text.strip() for text in report(whole)]
    assert f"desktops: {100 * status['utilisation']:.0f} % busy" in lines
    depth = (found[f"queue_{name}"] for name in ("waiting_slots", "open_groups", "finished_groups"))
    assert "queue: {:.0f} episodes wait, {:.0f} groups are played, {:.0f} wait for the trainer".format(*depth) in lines


def test_a_resumed_run_trains_the_groups_that_were_not_trained() -> None:
    with collector(staleness=1) as made:
        first = [summary(batch) for batch in islice(made, 2)]
        state = json.loads(json.dumps(made.state_dict()))
    with collector(staleness=1, state=state) as resumed:
        second = [summary(batch) for batch in islice(resumed, 2)]
    with collector(staleness=1) as straight:
        assert first + second == [summary(batch) for batch in islice(straight, 4)]


def test_a_resumed_run_leases_nothing_before_the_first_weights() -> None:
    """A service waits for them for some minutes only, and a lease that it cannot play in time is an attempt."""
    with collector(staleness=1) as made:
        assert len(list(islice(made, 1))) == 1
        state = json.loads(json.dumps(made.state_dict()))
    with collector(workers=0, staleness=1, state=state, evaluation=EVALUATION) as resumed:
        queue: Any = resumed.queue
        assert queue.lease("worker", 1, 0.0) == []
        assert json.loads(json.dumps(resumed.state_dict())) == state
        resumed.evaluate(1)  # sends the weights
        assert len(queue.lease("worker", 2, 1.0)) == 2


def test_the_service_batches_what_waits_and_passes_errors_on() -> None:
    started, go_on = threading.Event(), threading.Event()

    class Blocking(ScriptedPolicy):
        def sample(
            self, prompts: Sequence[Prompt], keys: Sequence[SeedKey], *, temperature: float = 1.0
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
        served = ServedSampler(service)
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
