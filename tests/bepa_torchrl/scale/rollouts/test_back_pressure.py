"""Back-pressure: the decision by arithmetic, desktops that are closed and made again, what the queue says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from polling import until

from bepa_torchrl.rollout.group_collector import RolloutSeeds
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker, RolloutPlan
from bepa_torchrl.scale.rollouts.pool.back_pressure import PoolSize, Sample, desktops_wanted, shares
from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.queue_state import DesktopDemand
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.scale.rollouts.task_queue import TaskQueue
from bepa_torchrl.testing import LampDesktop, ScriptedPolicy, lamp_task
from osworld_gym.vector import DesktopVector


def sample(at: float, playing: int, waiting: int, busy: float, held_up: float) -> Sample:
    return Sample(at, DesktopDemand(playing, waiting, busy, held_up))


def test_a_trainer_that_never_waits_needs_the_mean_number_that_played_and_a_quarter_more() -> None:
    """480 s of episodes in 100 s: 4.8 desktops played at a time; 1.25 · 4.8 = 6. The peak was 16."""
    samples = [sample(0, 16, 0, 0, 0), sample(50, 16, 16, 300, 0), sample(100, 0, 0, 480, 2)]
    assert desktops_wanted(samples, 16, 16, may_shrink=True) == 6
    assert desktops_wanted(samples, 16, 16, may_shrink=False) == 16
    assert desktops_wanted(samples, 5, 16, may_shrink=True) == 5  # fewer than enough are not made more
    idle = [sample(0, 0, 0, 480, 2), sample(100, 0, 0, 480, 2)]
    assert desktops_wanted(idle, 16, 16, may_shrink=True) == 1


def test_a_trainer_that_waits_now_and_then_needs_as_many_as_played_at_once() -> None:
    """It waited 6 s of 100, and at most 9 + 3 slots played or waited at the same time."""
    samples = [sample(0, 9, 3, 0, 0), sample(50, 10, 0, 300, 6), sample(100, 4, 0, 480, 6)]
    assert desktops_wanted(samples, 16, 16, may_shrink=True) == 12
    assert desktops_wanted(samples, 8, 16, may_shrink=True) == 8


def test_a_trainer_that_waits_while_slots_do_gets_desktops_at_once() -> None:
    """In the last 5 s it waited 3 s, and 4 slots of 6 have no desktop; 2 s would not be enough, nor other slots."""
    before = [sample(0, 2, 0, 0, 0), sample(10, 2, 6, 20, 0)]
    assert desktops_wanted([*before, sample(15, 2, 4, 30, 3)], 2, 16, may_shrink=False) == 6
    assert desktops_wanted([*before, sample(15, 2, 4, 30, 3)], 2, 5, may_shrink=False) == 5
    assert desktops_wanted([*before, sample(15, 2, 4, 30, 2)], 2, 16, may_shrink=False) == 2
    assert desktops_wanted([*before, sample(15, 2, 0, 30, 5)], 2, 16, may_shrink=False) == 2


def test_slots_after_a_rest_get_desktops_at_once() -> None:
    """Nothing was played from 0 to 10 s; then 8 slots are admitted, and the trainer still trains."""
    rest = [sample(0, 0, 0, 70, 3), sample(10, 0, 0, 70, 3)]
    assert desktops_wanted([*rest, sample(15, 2, 6, 75, 3)], 2, 16, may_shrink=True) == 8
    assert desktops_wanted([rest[0], sample(15, 2, 6, 75, 3)], 2, 16, may_shrink=False) == 2  # one sample is no rest


def test_shares_are_in_proportion_and_never_nothing() -> None:
    assert shares(12, {"a": 8, "b": 4}) == {"a": 8, "b": 4}
    assert shares(6, {"a": 8, "b": 4}) == {"a": 4, "b": 2}  # beyond one each: 4 · 7 / 10 = 2.8, and 4 · 3 / 10 = 1.2
    assert shares(2, {"a": 8, "b": 4}) == {"a": 1, "b": 1}
    assert shares(1, {"a": 8, "b": 4}) == {"a": 1, "b": 1}
    assert shares(4, {"a": 2, "b": 1, "c": 2}) == {"a": 2, "b": 1, "c": 1}
    assert shares(99, {"a": 2, "b": 1}) == {"a": 2, "b": 1}
    assert shares(0, {}) == {}


def test_the_size_of_a_pool_from_sample_to_sample() -> None:
    """Shrinks after 20 s without use, not again for 20 s; grows when slots come; a worker that joins has its share."""
    now = 0.0
    size, most = PoolSize(20.0, clock=lambda: now), {"a": 4, "b": 4}

    def at(seconds: float, playing: int, waiting: int, busy: float, held_up: float = 0.0) -> dict[str, int]:
        nonlocal now
        now = seconds
        return size.update(DesktopDemand(playing, waiting, busy, held_up), most)

    assert at(0, 8, 0, 0) == {"a": 4, "b": 4}
    assert at(10, 3, 0, 24) == {"a": 4, "b": 4}
    assert at(19, 3, 0, 51) == {"a": 4, "b": 4}
    assert at(20, 3, 0, 54) == {"a": 2, "b": 2}  # ceil(1.25 · 54 / 20) = 4
    assert at(39, 0, 0, 54) == {"a": 2, "b": 2}
    assert at(40, 0, 0, 54) == {"a": 1, "b": 1}
    assert at(50, 2, 6, 55) == {"a": 4, "b": 4}  # from 20 to 40 s nothing was played
    assert at(60, 8, 0, 115) == {"a": 4, "b": 4}
    most["c"] = 2
    assert at(61, 8, 0, 123) == {"a": 4, "b": 4, "c": 2}
    del most["a"], most["b"], most["c"]
    assert at(62, 0, 0, 123) == {}


@dataclass
class Desktops:
    """Counts desktops that are open; a reset waits for ``go_on``."""

    open: int = 0
    resets: int = 0

    def __post_init__(self) -> None:
        self.lock, self.go_on = threading.Lock(), threading.Event()

    def vector(self) -> DesktopVector:
        return DesktopVector(lambda: CountedLamp(self), 1)


class CountedLamp(LampDesktop):
    def __init__(self, counts: Desktops) -> None:
        super().__init__()
        self._counts = counts
        with counts.lock:
            counts.open += 1

    def reset(self, seed: int) -> None:
        with self._counts.lock:
            self._counts.resets += 1
        assert self._counts.go_on.wait(60.0)
        super().reset(seed)

    def close(self) -> None:
        super().close()
        with self._counts.lock:
            self._counts.open -= 1


def make_worker(queue: Any, make: Callable[[], DesktopVector], desktops: int) -> tuple[EnvWorker, RolloutService]:
    service = RolloutService(ScriptedPolicy(lambda _: True))
    plan = RolloutPlan(tuple(lamp_task(n) for n in range(5)), RolloutSeeds(3, "group"), 1.0, 0)
    return EnvWorker("node", queue, service, plan, make, desktops=desktops, poll=0.05), service


def test_a_worker_closes_desktops_and_makes_them_again() -> None:
    """Idle ones at once, those that play after their episode; no slot is lost or played twice."""
    queue, desktops = QueueService(batch_groups=1, max_staleness=9), Desktops()
    worker, service = make_worker(queue, desktops.vector, 4)
    try:
        until(lambda: desktops.open == 4, "not all desktops are made")
        worker.resize(1)
        until(lambda: desktops.open == 1, "idle desktops are not closed")
        assert worker.state().desktops == 1
        assert worker.alive() == 4  # the others can be made again
        queue.admit([0, 0], 6)
        until(lambda: desktops.resets == 1, "the slots are not played")
        assert queue.demand()[:2] == (1, 5)
        worker.resize(3)
        until(lambda: desktops.resets == 3, "desktops are not made again")
        assert queue.demand()[:2] == (3, 3)
        worker.resize(1)
        desktops.go_on.set()
        group = queue.next_group(60.0)
        assert group is not None
        assert not group.reasons
        until(lambda: desktops.open == 1, "desktops that played are not closed")
        counts = queue.describe()
        assert counts["completed"] == 6
        assert "requeued" not in counts
        assert desktops.resets == 6
        with pytest.raises(ValueError, match="expected 1 to 4 desktops, got 5"):
            worker.resize(5)
    finally:
        desktops.go_on.set()
        worker.stop(10.0)
        service.close()
    assert desktops.open == 0


def test_a_worker_whose_desktops_are_closed_ends_at_once() -> None:
    desktops = Desktops()
    worker, service = make_worker(QueueService(batch_groups=1, max_staleness=0), desktops.vector, 3)
    until(lambda: desktops.open == 3, "not all desktops are made")
    worker.resize(1)
    until(lambda: desktops.open == 1, "idle desktops are not closed")
    worker.stop(10.0)
    service.close()
    assert desktops.open == 0
    assert worker.alive() == 0


def test_the_queue_states_what_desktops_are_needed_for() -> None:
    """Two desktops play for 10 s, one of a worker that has closed the other for 5 s more; the rest waits."""
    now = 0.0
    queue = TaskQueue(batch_groups=1, max_staleness=1, clock=lambda: now)
    queue.admit("t", 3)
    queue.admit("t", 2)
    queue.admit_evaluation("e", 4)
    first, _ = queue.lease("a", 2)
    assert queue.demand(0.0) == DesktopDemand(2, 3 + 4, 0.0, 0.0)
    now = 10.0
    queue.complete(first.ticket, "r")
    queue.resize("a", 1)
    queue.resize("unknown", 7)
    now = 15.0
    assert queue.demand(1.5) == DesktopDemand(1, 3 + 4, 2 * 10 + 5, 1.5)
    described = queue.describe()
    assert described["desktops"] == 1
    assert described["desktop_seconds"] == 2 * 10 + 5
    queue.end_rollouts()
    assert queue.demand(0.0).waiting == 4


def test_the_time_that_the_trainer_waits_is_counted_also_while_it_does() -> None:
    queue = QueueService(batch_groups=1, max_staleness=0)
    assert queue.demand().held_up_seconds == 0.0
    trainer = threading.Thread(target=queue.next_group, args=(60.0,))
    trainer.start()
    until(lambda: queue.demand().held_up_seconds > 0.05, "the time is not counted")
    queue.admit("t", 1)
    (lease,) = queue.lease("a", 1, 10.0)
    queue.complete(lease.ticket, "r")
    trainer.join(60.0)
    assert not trainer.is_alive()
    waited = queue.demand().held_up_seconds
    assert waited > 0.05
    assert queue.demand().held_up_seconds == waited  # nobody waits any more
