"""Real Ray actors: kill -9 of a service changes nothing, staleness is bounded, errors cross."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from lamp_groups import GROUPS, SIZE, Learner, lock_step, wins
from ray.exceptions import RpcError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_runs import Run, kill_9, processes, wait_for

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.data.step_rows import int_entry, row_list
from bepa_torchrl.policies.base import ImagePrefetcher
from bepa_torchrl.scale.engine.errors import EngineError
from bepa_torchrl.scale.rollouts import ray_cluster, ray_services
from bepa_torchrl.scale.rollouts.async_collector import AsyncIteration
from bepa_torchrl.scale.rollouts.pool import env_worker_pool
from bepa_torchrl.scale.rollouts.pool.nodes import MAX_FAILURES
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.ray_queue import RayQueue
from bepa_torchrl.scale.rollouts.ray_services import ServicePool
from bepa_torchrl.scale.rollouts.task_queue import StaleTicketError
from bepa_torchrl.testing import lamp_vector, summary
from osworld_gym import __version__
from osworld_gym.errors import DesktopError
from osworld_gym.vector import DesktopVector

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("default"),
]


def test_clocks_of_nodes_may_differ() -> None:
    """The workers' wall clocks are days off, in both directions, the trainer's is not; a lease lasts two minutes."""
    trainer = os.getpid()

    def make() -> DesktopVector:
        if os.getpid() != trainer and not hasattr(time, "shifted"):
            right, days = time.time, 3 if os.getpid() % 2 else -3
            time.time = lambda: right() + days * 86400.0
            time.shifted = True  # type: ignore[attr-defined]
        return lamp_vector(1)

    run = Run(staleness=0, workers=2, make_vector=make)
    try:
        batches = [summary(batch) for batch in islice(run.collector, 3)]
        counts = run.collector.queue.describe()
        assert batches == lock_step(3)
    finally:
        run.end()
    assert counts["completed"] == 3 * GROUPS * SIZE
    assert not counts.keys() & {"requeued", "refused", "given_up"}  # counts of what has happened
    assert run.pool.replaced == 0


def test_a_node_that_is_gone_but_listed_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray refuses to start a worker on such a node, or does not answer; the pool goes on to replace workers."""
    gone, here = ray.NodeID.from_random().hex(), ray.get_runtime_context().get_node_id()
    # the sixth and the seventh one fail: workers have failed before; the thread that watches survives what it is
    listings = iter([*[None] * 5, RpcError("no answer"), ZeroDivisionError("a bug")])

    def listed() -> dict[str, int]:
        if (error := next(listings, None)) is not None:
            raise error
        return {gone: 2, here: 2}

    monkeypatch.setattr(env_worker_pool, "cluster_nodes", listed)
    run = Run(staleness=0, workers=None)
    try:
        wait_for(lambda: run.pool.replaced == MAX_FAILURES)
        rollouts = iter(run.collector)
        batches = [summary(next(rollouts))]
        assert [worker.node for worker in run.pool.workers.values()] == [here]
        kill_9(run.pool)
        batches += [summary(next(rollouts)), summary(next(rollouts))]
        wait_for(lambda: run.pool.replaced == MAX_FAILURES + 1)
        assert batches == lock_step(3)
    finally:
        run.end()
    messages = [record.getMessage() for record in caplog.records]
    replaced = [message for message in messages if message.endswith("it is replaced")]
    assert sum("could not be started (The actor is not schedulable" in message for message in replaced) == 3
    assert sum(f"node {gone} is left out for 60 minutes: 3 workers in a row" in message for message in messages) == 1
    assert sum("health of env workers: no answer" in message for message in messages) == 1
    assert messages.count("health of env workers") == 1


def test_another_version_of_the_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers and services do not start, each with the reason; without any worker the run ends."""
    monkeypatch.setattr(env_worker_pool, "__version__", "0.0.1")
    run = Run(staleness=0, workers=1)
    try:
        with pytest.raises(
            DesktopError, match=r"no worker is left: all nodes are left out; node .*expected version 0\.0\.1"
        ):
            run.collector.rollout()
    finally:
        run.end()
    reasons = [record.getMessage() for record in caplog.records if "could not be started" in record.getMessage()]
    assert len(reasons) == MAX_FAILURES + 1  # and that the node is left out
    assert all(f"has {__version__}; install the same version on every node" in reason for reason in reasons)
    monkeypatch.setattr(ray_services, "__version__", "0.0.1")
    services = ServicePool(lambda: Learner(wins), replicas=1, num_cpus=0)
    try:
        with pytest.raises(
            DesktopError, match=r"expected version 0\.0\.1 of osworld-gym, as where the run was started"
        ):
            services.publish([], 0)
    finally:
        services.stop()


def test_calls_that_wait_for_weights_do_not_keep_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that has started again gets the retried calls of all its desktops at once, more than it can answer."""
    monkeypatch.setattr(ray_services, "CALLERS", 4)
    services = ServicePool(lambda: Learner(wins), replicas=1, check_every=0.2, num_cpus=0)
    (service,) = services.actors
    prompt = Prompt(torch.zeros(1, dtype=torch.int64), ())
    try:
        calls = [service.sample.remote([prompt], [(0, 0, number, 0, 9)], 1.0) for number in range(10)]
        assert ray.wait(calls, timeout=3.0)[0] == []
        services.publish([], 7)
        assert {version for _, version in ray.get(calls, timeout=240)} == {7}
    finally:
        services.stop()


def test_the_health_check_of_services_survives_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One answer cannot be read; a service that is killed afterwards gets the weights nevertheless."""
    check, broken = ServicePool._check, iter([1])

    def checked(self: ServicePool, number: int, answer: Any) -> None:
        for _ in broken:
            raise ZeroDivisionError("a bug")
        check(self, number, answer)

    monkeypatch.setattr(ServicePool, "_check", checked)
    services = ServicePool(lambda: Learner(wins), replicas=1, check_every=0.2, num_cpus=0)
    try:
        services.publish([], 7)
        wait_for(lambda: "health of rollout services" in caplog.text)
        process, *_ = ray.get(services.actors[0].state.remote(), timeout=120)
        wait_for(lambda: services._processes)
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: services.restarts == 1)
        client: Any = ray_cluster.ActorClient(services.actors[0], 120.0)
        assert client.sample([Prompt(torch.zeros(1, dtype=torch.int64), ())], [(0, 0, 0, 0, 0)], 1.0)[1] == 7
    finally:
        services.stop()


def test_kill_9_of_a_rollout_service_changes_nothing() -> None:
    """The service that is started again gets the current weights before it samples: rows keep their version."""
    run = Run(staleness=0, workers=1)
    (service,) = run.services.actors
    versions = []
    try:
        batches = []
        for batch in islice(run.collector, 4):
            batches.append(summary(batch))
            versions.append({int_entry(row, K.POLICY_VERSION) for row in row_list(batch)})
            run.collector.rollout_policy.version += 1
            if len(batches) in (1, 2):
                process, *_ = ray.get(service.state.remote(), timeout=120)
                delay = 0.1 * (len(batches) - 1)  # between two batches, and probably within one
                threading.Timer(delay, os.kill, (process, signal.SIGKILL)).start()
        assert batches == lock_step(4)
    finally:
        run.end()
    assert versions == [{0}, {1}, {2}, {3}]
    assert run.services.restarts >= 1


def test_a_rolling_restart_replaces_every_worker_and_changes_nothing() -> None:
    run = Run(staleness=0, workers=2)
    try:
        wait_for(lambda: all(worker.ready for worker in list(run.pool.workers.values())))
        before, names = set(processes(run.pool)), set(run.pool.workers)
        batches = []
        for batch in islice(run.collector, 40):
            batches.append(summary(batch))
            if len(batches) == 1:
                assert run.collector.restart_workers()
            if run.pool.restarted == 2:
                break
            time.sleep(0.0 if len(batches) < 4 else 2.0)
        wait_for(lambda: run.pool.restarted == 2 and all(worker.ready for worker in list(run.pool.workers.values())))
        assert not before & set(processes(run.pool))
        assert not names & set(run.pool.workers)
        assert batches == lock_step(len(batches))
        assert run.pool.replaced == 0
    finally:
        run.end()


def test_a_stall_names_the_worker_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(staleness=0, workers=1, stall_seconds=2.0)
    stopped = processes(run.pool)[0]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(DesktopError, match="no group was finished for 2 s"):
            list(islice(run.collector, 50))
    finally:
        os.kill(stopped, signal.SIGCONT)
        run.end()
    (dump,) = [record.getMessage() for record in caplog.records if "what each part waits for" in record.getMessage()]
    found = json.loads(dump.partition("\n")[2])
    assert found["worker0"] == "no answer in 10 s"
    assert "rollout service" in found["service0"]["threads"]
    assert "trainer" in found


def test_a_service_that_cannot_be_made_is_an_infrastructure_failure() -> None:
    def broken() -> Learner:
        raise FileNotFoundError("no such checkpoint")

    services = ServicePool(broken, replicas=1, num_cpus=0)
    try:
        with pytest.raises(DesktopError, match="no such checkpoint"):
            services.publish([], 0)
    finally:
        services.stop()


def test_a_service_whose_engine_has_failed_is_started_again(tmp_path: Path) -> None:
    class FailingOnce(Learner):
        """An engine that has failed for good, in the first process only; sent to the actor with its code."""

        concurrent = False

        def __init__(self, failed: Path) -> None:
            super().__init__(wins)
            self.failed = failed

        def sample(self, *args: Any, **options: Any) -> list[Response]:
            if not self.failed.exists():
                self.failed.write_text(str(os.getpid()))
            if self.failed.read_text() == str(os.getpid()):
                raise EngineError("it was restarted 3 times (max_restarts)")
            return super().sample(*args, **options)

        def sync(self) -> None:
            return

        def drain_metrics(self) -> dict[str, float]:
            return {"engine/restarts": 3.0}

        def close(self) -> None:
            self.failed.with_name("closed").touch()

    failed = tmp_path / "failed"
    services = ServicePool(lambda: FailingOnce(failed), replicas=1, check_every=0.2, num_cpus=0)
    try:
        services.publish([], 7)
        client: Any = ray_cluster.ActorClient(services.actors[0], 120.0)
        call = ([Prompt(torch.zeros(1, dtype=torch.int64), ())], [(0, 0, 0, 0, 0)], 1.0)
        with pytest.raises(EngineError, match="max_restarts"):
            client.sample(*call)

        def version() -> int | None:
            with suppress(RuntimeError):  # until it is started again
                return int(client.sample(*call)[1])
            return None

        assert wait_for(version) == 7  # after it got the weights again
        wait_for(lambda: services.restarts == 1)
        assert services.engine_metrics() == [{"engine/restarts": 3.0}]
    finally:
        services.stop()
    assert failed.with_name("closed").exists()


def test_staleness_is_bounded_in_strict_order() -> None:
    run = Run(staleness=1, workers=1)
    groups: Counter[int] = Counter()
    ages: list[int] = []
    try:
        for batch in islice(run.collector, 5):
            assert isinstance(run.collector.last, AsyncIteration)
            ages += run.collector.last.ages
            groups.update({int_entry(row, K.GROUP_ID) for row in row_list(batch)})
            run.collector.rollout_policy.version += 1
    finally:
        run.end()
    assert groups == dict.fromkeys(range(5 * GROUPS), 1)
    assert max(ages) <= 1


def failure_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except DesktopError as error:
        return str(error)
    return ""


def test_errors_cross_and_an_actor_that_is_gone_is_an_infrastructure_failure() -> None:
    queue = RayQueue(batch_groups=1, max_staleness=0)
    client: Any = ray_cluster.ActorClient(queue.actor)
    assert hasattr(client, "complete")
    assert not isinstance(client, ImagePrefetcher)  # it has no methods but the actor's
    with pytest.raises(StaleTicketError, match="has ended"):
        client.complete("0-99", None)
    queue.admit("t", 1)
    with pytest.raises(ValueError, match="the queue is full"):
        queue.admit("t", 1)
    queue.stop()  # does not wait for the actor's end
    wait_for(lambda: "died: an actor has exited" in failure_of(client.describe))
    nowhere = NodeAffinitySchedulingStrategy(ray.NodeID.from_random().hex(), soft=False)
    actor = ray.remote(QueueService).options(scheduling_strategy=nowhere).remote(batch_groups=1, max_staleness=0)
    with pytest.raises(
        DesktopError, match="died: an actor cannot be reached by capacity_left: The actor is not schedulable"
    ):
        ray_cluster.ActorClient(actor).capacity_left()
    assert ray_cluster.described(actor).startswith("has exited, or failed (The actor is not schedulable")
