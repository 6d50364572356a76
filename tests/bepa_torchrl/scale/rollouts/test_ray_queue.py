"""The queue's actor is killed with SIGKILL: it is started again with its state, and every group is trained once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import ray
from lamp_groups import GROUPS, SIZE, lock_step
from ray_runs import Run, wait_for

from bepa_torchrl.data import keys as K
from bepa_torchrl.data.step_rows import int_entry, row_list
from bepa_torchrl.scale.rollouts import ray_queue
from bepa_torchrl.scale.rollouts.async_collector import AsyncIteration
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.ray_cluster import ActorClient
from bepa_torchrl.scale.rollouts.ray_queue import RayQueue
from bepa_torchrl.scale.rollouts.task_queue import StaleTicketError
from bepa_torchrl.testing import lamp_task, summary
from osworld_gym.errors import DesktopError

pytestmark = [
    pytest.mark.usefixtures("cluster"),
    pytest.mark.ray,
    pytest.mark.timeout(500),
    pytest.mark.filterwarnings("default"),
]


def process_of(queue: RayQueue) -> int:
    return int(ray.get(queue.actor.process.remote(), timeout=240))


def calls_of(thread: threading.Thread) -> list[str]:
    """The functions in which a thread is."""
    frame = sys._current_frames().get(thread.ident or 0)
    return [entry.name for entry in traceback.extract_stack(frame)]


def kill_9(queue: RayQueue) -> None:
    os.kill(process_of(queue), signal.SIGKILL)


def kill_soon(queue: RayQueue, delay: float) -> None:
    """Kills it while the trainer waits for it, or trains."""
    threading.Timer(delay, os.kill, (process_of(queue), signal.SIGKILL)).start()


def test_nothing_waits_for_a_queue_that_was_stopped() -> None:
    """No thread may wait for Ray while it is shut down, not even for a process that never answers."""
    queue = RayQueue(batch_groups=1, max_staleness=0)
    os.kill(process_of(queue), signal.SIGSTOP)
    wait_for(lambda: "_answer" in calls_of(queue._thread))
    queue.stop()
    assert not queue._thread.is_alive()


def test_calls_that_wait_end_with_the_queue_and_none_comes_after_them() -> None:
    """As those of a server's threads for rollout clusters, which ask for leases until the end."""
    queue = RayQueue(batch_groups=1, max_staleness=0)
    process_of(queue)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(queue.lease, "worker", 1, 100.0)
        wait_for(waiting.running)
        queue.stop()
        assert waiting.done()
        assert isinstance(waiting.exception(), DesktopError)
    with pytest.raises(DesktopError, match="the queue's actor has ended with the run"):
        queue.lease("worker", 1, 0.0)


def test_two_kills_while_rollouts_are_played_change_nothing() -> None:
    """At staleness 0 episodes that are played again are the same: the batches are those of lock-step."""
    run = Run(staleness=0, workers=2)
    try:
        batches = []
        for batch in islice(run.collector, 4):
            batches.append(summary(batch))
            if len(batches) in (1, 2):
                kill_soon(run.queue, 0.05 * len(batches))
                wait_for(lambda: len(batches) != 1 or run.queue.restarts == 1)
        assert batches == lock_step(4)
        wait_for(lambda: run.queue.restarts == 2)
        assert run.pool.replaced == 0
    finally:
        run.end()


def test_a_kill_beside_an_evaluation_loses_no_group_and_no_outcome() -> None:
    """Ages stay bounded, groups are trained once in order, the evaluation is reported once and is whole."""
    evaluation = EvaluationPlan((lamp_task(7), lamp_task(8)), episodes=4, seed=5, temperature=1.0)
    run = Run(staleness=1, workers=2, evaluation=evaluation)
    groups: Counter[int] = Counter()
    ages: list[int] = []
    try:
        for iteration, batch in enumerate(islice(run.collector, 4), start=1):
            assert isinstance(run.collector.last, AsyncIteration)
            ages += run.collector.last.ages
            groups.update({int_entry(row, K.GROUP_ID) for row in row_list(batch)})
            run.collector.rollout_policy.version += 1
            if iteration == 1:
                run.collector.evaluate(iteration)
                kill_9(run.queue)
            elif iteration == 3:
                kill_9(run.queue)
                wait_for(lambda: run.queue.restarts == 2)
        (found,) = run.collector.remaining_evaluations()
        assert run.collector.remaining_evaluations() == []
    finally:
        run.end()
    assert groups == dict.fromkeys(range(4 * GROUPS), 1)
    assert max(ages) <= 1
    assert [(each["task_id"], each["episode"]) for each in found.episodes] == [
        (f"lamp-{task}", episode) for task in (7, 8) for episode in range(4)
    ]
    assert {each["failure"] for each in found.episodes} == {None}


def test_open_leases_survive_and_calls_on_their_way_are_answered_once() -> None:
    queue = RayQueue(batch_groups=1, max_staleness=1, lease_seconds=600.0)
    client: Any = ActorClient(queue.actor, 240.0)
    try:
        queue.admit("a", SIZE)
        first, second, third = client.lease("w", SIZE, 60.0)
        wait_for(lambda: len(queue._memory.leases) == SIZE)
        client.complete(third.ticket, "lost")
        kill_9(queue)
        client.complete(first.ticket, "sent to the one that is started")
        with pytest.raises(StaleTicketError):
            client.complete(first.ticket, "twice")
        kill_9(queue)  # the result is lost, and is not yet known to have been there
        assert queue.admit("b", 1) == 1
        wait_for(lambda: queue.restarts == 2)
        client.complete(second.ticket, "kept")
        assert client.release("w", "exited") <= 2
        for lease in client.lease("v", 9, 60.0):
            assert lease.task == "b" or lease.slot != second.slot
            client.complete(lease.ticket, f"slot {lease.slot}")
        group = queue.next_group(60.0)
        assert group is not None
        kill_9(queue)
        queue.take(group.group)
        assert (group.results[second.slot], len(group.results)) == ("kept", SIZE)
        (last,) = client.lease("v", 9, 60.0)
        assert (last.group, last.task) == (1, "b")
    finally:
        queue.stop()


def test_a_queue_that_exits_again_and_again_ends_the_run_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_queue, "MAX_RESTARTS", 1)
    run = Run(staleness=0, workers=1)
    try:
        run.collector.rollout()
        kill_9(run.queue)
        wait_for(lambda: run.queue.restarts == 1)
        kill_9(run.queue)
        exited = r"(?s)died: the queue's actor has exited.* it is started again 20 times.* resume=true"
        with pytest.raises(DesktopError, match=exited):
            list(islice(run.collector, 100))
    finally:
        run.end()
