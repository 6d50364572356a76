"""The queue for many threads: who waits is woken when something has become available, and only then."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from polling import until

from bepa_torchrl.scale.rollouts import queue_service
from bepa_torchrl.scale.rollouts.queue_service import QueueService


@pytest.fixture(autouse=True)
def no_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks again only if it is woken."""
    monkeypatch.setattr(queue_service, "_EXPIRY", 600.0)


class Waiting:
    """Threads that each wait for one call; ``looked`` counts the calls of the queue's method."""

    def __init__(self, service: QueueService, method: str, calls: list[tuple[Any, ...]]) -> None:
        inner, self.looked, self.found = getattr(service._queue, method), 0, list[Any]()

        def counted(*args: Any) -> Any:
            self.looked += 1
            return inner(*args)

        setattr(service._queue, method, counted)
        name = {"finished": "next_group", "take_evaluation": "next_evaluation"}.get(method, method)
        self.threads = [
            threading.Thread(target=lambda args=args: self.found.append(getattr(service, name)(*args)), daemon=True)
            for args in calls
        ]
        for thread in self.threads:
            thread.start()
        until(lambda: self.looked == len(calls), "a thread does not wait")

    def ended(self, count: int) -> None:
        until(lambda: len(self.found) == count, f"not {count} calls have ended")


def test_a_slot_wakes_one_worker_and_other_calls_wake_none() -> None:
    service = QueueService(batch_groups=1, max_staleness=9)
    waiting = Waiting(service, "lease", [(f"w{number}", 1, 600.0) for number in range(5)])
    service.renew([])
    service.describe()
    service.capacity_left()
    assert waiting.looked == 5
    service.admit("t", 2)
    waiting.ended(2)
    assert waiting.looked == 7  # the two that have got one
    first, second = (leases[0] for leases in waiting.found)
    service.complete(first.ticket, "r")
    assert waiting.looked == 7
    service.fail(second.ticket, "broken")
    waiting.ended(3)
    assert waiting.looked == 8
    service.admit("t", 2)
    waiting.ended(5)
    assert waiting.looked == 10


def test_a_finished_group_wakes_the_trainer_and_no_worker() -> None:
    service = QueueService(batch_groups=1, max_staleness=9)
    service.admit("t", 1)
    service.admit_evaluation("e", 1)
    groups = Waiting(service, "finished", [(600.0,)])
    evaluations = Waiting(service, "take_evaluation", [(600.0,)])
    leases = service.lease("w", 2, 0.0)
    workers = Waiting(service, "lease", [("w", 1, 600.0)])
    looked = workers.looked
    service.complete(leases[0].ticket, "r")
    groups.ended(1)
    assert evaluations.looked == 1
    service.complete(leases[1].ticket, "r")
    evaluations.ended(1)
    assert service.finished_groups() == 1
    assert workers.looked == looked


def test_a_worker_that_is_released_while_it_waits_gets_no_lease() -> None:
    service = QueueService(batch_groups=1, max_staleness=9)
    exited = Waiting(service, "lease", [("exited", 2, 600.0)])
    assert service.release("exited", "has exited") == 0
    exited.ended(1)
    assert exited.found == [[]]
    service.admit("t", 2)
    leases = service.lease("other", 2, 0.0)
    assert [lease.slot for lease in leases] == [0, 1]
    assert service.describe()["desktops"] == 2  # those of the other one


def test_the_slots_of_a_worker_that_has_exited_do_not_go_to_its_own_waiting_call() -> None:
    service = QueueService(batch_groups=1, max_staleness=9)
    service.admit("t", 1)
    assert len(service.lease("exited", 1, 0.0)) == 1
    exited = Waiting(service, "lease", [("exited", 1, 600.0)])  # of another desktop of the same worker
    assert service.release("exited", "has exited") == 1
    exited.ended(1)
    assert exited.found == [[]]
    assert [lease.attempt for lease in service.lease("other", 1, 0.0)] == [2]
