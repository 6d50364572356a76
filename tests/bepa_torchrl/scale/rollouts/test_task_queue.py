"""The queue under random interleavings: groups exactly once, late results refused, the age bound in strict order."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_tests import examples

from bepa_torchrl.scale.rollouts.task_queue import FinishedGroup, Lease, Order, StaleTicketError, TaskQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def queue(clock: Clock | None = None, **more: Any) -> TaskQueue:
    options: dict[str, Any] = {"batch_groups": 2, "max_staleness": 1, "lease_seconds": 10.0, "max_attempts": 3}
    return TaskQueue(**(options | more), clock=clock or Clock())


def finish_all(tasks: TaskQueue) -> None:
    while leases := tasks.lease("w"):
        tasks.complete(leases[0].ticket, (leases[0].group, leases[0].slot))


def test_admission_is_bounded_by_staleness() -> None:
    """B = 2, S = 1: (0 + 1 + 1) 2 = 4 groups before the first update, 2 more after it."""
    tasks = queue()
    assert tasks.capacity_left() == 4
    for _ in range(4):
        tasks.admit("t", 2)
    assert tasks.capacity_left() == 0
    with pytest.raises(ValueError, match=r"the queue is full: 4 groups were admitted for 0 trained batches of 2 at"):
        tasks.admit("t", 2)
    tasks.trained()
    assert tasks.capacity_left() == 2


def test_a_late_result_of_an_expired_lease_is_refused() -> None:
    clock = Clock()
    tasks = queue(clock)
    tasks.admit("t", 1)
    (first,) = tasks.lease("slow")
    clock.now = 9.0
    tasks.renew(first.ticket)
    clock.now = 18.9
    assert tasks.lease("other") == []
    clock.now = 19.0
    (second,) = tasks.lease("other")
    assert (second.group, second.slot, second.attempt) == (first.group, first.slot, 2)
    assert tasks.leased(second.ticket) == second
    late_calls = (tasks.renew, tasks.leased, lambda ticket: tasks.complete(ticket, "late"))
    for late in late_calls:
        with pytest.raises(StaleTicketError, match=r"the lease 0-1 has ended: another worker got its slot"):
            late(first.ticket)
    tasks.complete(second.ticket, "result")
    with pytest.raises(StaleTicketError):
        tasks.complete(second.ticket, "twice")
    found = tasks.finished()
    assert found is not None
    assert found.results == ("result",)
    tasks.take(found.group)
    with pytest.raises(ValueError, match="group 0 is not finished, or was taken"):
        tasks.take(found.group)


def test_a_worker_that_exits_returns_its_slots_and_a_slot_is_given_up_with_its_reason() -> None:
    tasks = queue()
    tasks.admit("t", 2)
    for attempt in (1, 2, 3):
        leases = tasks.lease(f"node{attempt}", 2)
        assert {lease.attempt for lease in leases} == {attempt}
        assert tasks.release(f"node{attempt}", f"node{attempt} exited") == 2
    found = tasks.finished()
    assert found is not None
    assert found.results == (None, None)
    assert found.reasons[0] == "node3 exited (attempt 3 of 3)"
    left = tasks.capacity_left()
    tasks.drop(found.group)
    assert tasks.capacity_left() == left + 1
    assert tasks.describe()["given_up"] == 2


def test_a_slot_that_a_worker_has_lost_goes_to_another_one() -> None:
    """Worker a gets the slots that b has lost, b those of a; alone it gets them all."""
    clock = Clock()
    tasks = queue(clock)
    tasks.admit("t", 4)
    for worker in ("a", "b"):
        for lease in tasks.lease(worker, 2):
            tasks.fail(lease.ticket, "broken")
    assert [lease.slot for lease in tasks.lease("a", 9)] == [2, 3]
    assert tasks.lease("a", 9) == []
    tasks.release("b", "exited")
    assert [lease.slot for lease in tasks.lease("a", 9)] == [0, 1]


def test_a_worker_that_has_lost_a_slot_gets_it_before_one_on_which_its_episode_failed() -> None:
    tasks = queue()
    tasks.admit("t", 1)
    tasks.fail(tasks.lease("slow")[0].ticket, "it has ended")
    tasks.lease("bad", 0)
    tasks.fail(tasks.lease("bad")[0].ticket, "bad: died", "failure")
    assert tasks.lease("bad") == []
    assert [lease.attempt for lease in tasks.lease("slow")] == [3]


def test_a_worker_that_was_not_heard_of_for_a_lease_keeps_no_slot_from_others() -> None:
    clock = Clock()
    tasks = queue(clock, lease_seconds=10.0)
    assert tasks.lease("silent") == []
    tasks.admit("t", 1)
    tasks.fail(tasks.lease("a")[0].ticket, "broken")
    clock.now = 10.0
    assert tasks.lease("a") == []
    clock.now = 10.1
    assert [lease.attempt for lease in tasks.lease("a")] == [2]


def test_an_episode_that_failed_is_for_other_workers_and_keeps_all_its_failures() -> None:
    tasks = queue(max_attempts=9)
    tasks.admit("t", 2)
    for worker in "abcd":
        tasks.lease(worker, 0)
    for attempt, worker in enumerate("abc"):
        for lease in tasks.lease(worker, 9):
            if lease.slot == 0:
                tasks.complete(lease.ticket, "r")
            else:
                tasks.fail(lease.ticket, f"{worker}: died", (worker, lease.slot))
        assert (tasks.finished() is None) == (attempt < 2)
    found = tasks.finished()
    assert found is not None
    assert found.results == ("r", ("c", 1))
    assert found.failures == {1: (("a", 1), ("b", 1))}
    assert found.reasons == {1: "c: died (attempt 3 of 9)"}
    assert tasks.describe()["requeued"] == 2


def test_an_episode_that_failed_is_given_up_if_there_is_no_other_worker() -> None:
    tasks = queue()
    tasks.admit("t", 1)
    tasks.fail(tasks.lease("a")[0].ticket, "a: died", "failure")
    found = tasks.finished()
    assert found is not None
    assert (found.results, found.failures) == (("failure",), {0: ()})
    assert found.reasons == {0: "a: died (attempt 1 of 3)"}


def test_failures_of_a_slot_that_was_played_in_the_end_are_kept() -> None:
    tasks = queue()
    tasks.admit("t", 1)
    tasks.lease("b", 0)
    tasks.fail(tasks.lease("a")[0].ticket, "a: died", "failure")
    tasks.complete(tasks.lease("b")[0].ticket, "r")
    found = tasks.finished()
    assert found is not None
    assert (found.results, found.failures, found.reasons) == (("r",), {0: ("failure",)}, {})


def test_desktops_and_their_time_are_counted() -> None:
    """Worker a has 2 desktops and plays on 1 for 4 s; b, with 3, comes after 2 s: 1*4 of 2*4 + 3*2 = 14 s."""
    clock = Clock()
    tasks = queue(clock)
    tasks.admit("t", 1)
    assert len(tasks.lease("a", 2)) == 1
    clock.now = 2.0
    tasks.lease("b", 3)
    clock.now = 4.0
    found = tasks.describe()
    assert (found["desktops"], found["busy_seconds"], found["desktop_seconds"]) == (5, 4.0, 14.0)
    tasks.release("b", "exited")
    assert tasks.describe()["desktops"] == 2


def test_renewals_do_not_look_at_other_leases() -> None:
    """Of 2,000 leases 20 are renewed, again and again; an entry is looked at when its first deadline passes."""

    class Counting(dict[str, Any]):
        looked = 0

        def get(self, *args: Any) -> Any:
            Counting.looked += 1
            return super().get(*args)

        def items(self) -> Any:
            raise AssertionError("all leases were looked at")

        values = items

    clock = Clock()
    tasks = queue(clock, max_staleness=999)
    for _ in range(1000):
        tasks.admit("t", 2)
    leases = tasks.lease("w", 2000)
    tasks._leases._by_ticket = Counting(tasks._leases._by_ticket)
    for now in range(10):
        clock.now = float(now)
        assert tasks.renew_all([lease.ticket for lease in leases[:20]]) == []
    assert Counting.looked == 10 * 20
    clock.now = 10.0
    ended = tasks.renew_all([lease.ticket for lease in leases])
    assert ended == [lease.ticket for lease in leases[20:]]


@pytest.mark.parametrize(("order", "expected"), [("admission", [0, 1]), ("completion", [1, 0])])
def test_the_order_of_training(order: Order, expected: list[int]) -> None:
    tasks = queue(order=order)
    for _ in range(2):
        tasks.admit("t", 1)
    slow, fast = tasks.lease("w", 2)
    tasks.complete(fast.ticket, "fast")
    assert (tasks.finished() is None) == (order == "admission")
    tasks.complete(slow.ticket, "slow")
    for number in expected:
        found = tasks.finished()
        assert found is not None
        assert found.group == number
        tasks.take(number)


def test_a_restored_queue_runs_what_was_not_taken_and_refuses_old_tickets() -> None:
    tasks = queue()
    for number in range(4):
        tasks.admit({"task": number}, 2)
    leases = tasks.lease("w", 5)  # groups 0 and 1, and slot 0 of group 2
    for lease in leases[:4]:
        tasks.complete(lease.ticket, "x")
    tasks.take(0)
    state = json.loads(json.dumps(tasks.state_dict()))
    restored = queue(generation=tasks.generation)
    restored.load_state_dict(state)
    with pytest.raises(StaleTicketError):
        restored.complete(leases[4].ticket, "late")
    again = restored.lease("w", 9)
    assert Counter(lease.group for lease in again) == {1: 2, 2: 2, 3: 2}
    assert not {lease.ticket for lease in again} & {lease.ticket for lease in leases}
    assert restored.capacity_left() == tasks.capacity_left() == 0
    with pytest.raises(ValueError, match=r"resume with the program and the collect\.groups"):
        queue(batch_groups=3).load_state_dict(state)


def test_an_evaluation_gets_every_fourth_lease_and_what_no_rollout_requires() -> None:
    """B = 2, S = 1: 4 groups of 2; of ten leases the 4th and the 8th are the evaluation's, and those after the 8th."""
    tasks = queue(batch_groups=2, max_staleness=1)
    for number in range(4):
        tasks.admit(f"g{number}", 2)
    assert tasks.admit_evaluation([3, 7], 4) == 0
    assert tasks.capacity_left() == 0
    leases = tasks.lease("w", 99)
    assert [lease.evaluation for lease in leases] == [False] * 3 + [True] + [False] * 3 + [True] + [False] * 2 + [
        True
    ] * 2
    for lease in leases:
        tasks.complete(lease.ticket, {"success": lease.slot == 1} if lease.evaluation else "r")
    found = tasks.take_evaluation()
    assert found is not None
    assert (found.task, [result["success"] for result in found.results]) == ([3, 7], [False, True, False, False])
    assert tasks.take_evaluation() is None
    groups = []
    while (group := tasks.finished()) is not None:
        groups.append(group.task)
        tasks.take(group.group)
    assert groups == ["g0", "g1", "g2", "g3"]  # never the evaluation


def test_without_rollouts_the_evaluations_are_leased_alone() -> None:
    tasks = queue(batch_groups=2, max_staleness=1)
    tasks.admit("g0", 3)
    tasks.admit_evaluation([1, 1], 3)
    tasks.end_rollouts()
    assert [lease.evaluation for lease in tasks.lease("w", 99)] == [True] * 3


def test_results_of_evaluations_are_restored_and_what_was_leased_waits_again() -> None:
    tasks = queue(max_attempts=1)
    tasks.admit_evaluation([1, 5], 3)
    first, second, third = tasks.lease("w", 3)
    tasks.complete(first.ticket, {"success": True})
    tasks.fail(second.ticket, "broken")
    state = json.loads(json.dumps(tasks.state_dict()))
    restored = queue()
    restored.load_state_dict(state)
    again = restored.lease("w", 9)
    assert [lease.slot for lease in again] == [1, 2]
    with pytest.raises(StaleTicketError):
        restored.complete(third.ticket, {"success": True})
    for lease in again:
        restored.complete(lease.ticket, {"success": False})
    found = restored.take_evaluation()
    assert found is not None
    assert [result["success"] for result in found.results] == [True, False, False]
    assert restored.admit_evaluation([2, 6], 1) == 1
    old = {key: value for key, value in state.items() if not key.startswith("evaluations")}
    queue().load_state_dict(old)  # a checkpoint of an earlier version


def test_bad_values_are_refused() -> None:
    with pytest.raises(ValueError, match="a queue requires batch_groups >= 1"):
        queue(batch_groups=0)
    with pytest.raises(ValueError, match="order must be one of admission, completion, got 'fifo'"):
        queue(order="fifo")
    with pytest.raises(ValueError, match="at least one slot, got 0"):
        queue().admit("t", 0)


ACTIONS = ("admit", "lease", "complete", "late", "renew", "fail", "kill", "wait", "train", "restart", "evaluate")


class Run:
    """A driver that admits, trains and restarts, and workers that are slow, fail and exit."""

    def __init__(self, order: Order, groups: int, staleness: int) -> None:
        self.clock = Clock()
        self.options: dict[str, Any] = {
            "batch_groups": groups, "max_staleness": staleness, "order": order, "max_attempts": 10_000,
        }  # fmt: skip
        self.tasks = queue(self.clock, **self.options)
        self.held: list[Lease] = []
        self.ended: list[Lease] = []
        self.trained: Counter[str] = Counter()
        self.ages: list[int] = []
        self.admitted = 0
        self.batch: list[FinishedGroup] = []
        self.requested = 0
        self.evaluated: Counter[str] = Counter()
        self.saved = self.state()

    def act(self, action: str, choice: int) -> None:
        held = self.held[choice % len(self.held)] if self.held else None
        if action == "admit" and self.tasks.capacity_left() > 0:
            self.tasks.admit(f"g{self.admitted}", 1 + choice % 3)
            self.admitted += 1
        elif action == "evaluate":
            self.tasks.admit_evaluation(f"e{self.requested}", 1 + choice % 3)
            self.requested += 1
        elif action == "lease":
            self.held += self.tasks.lease(f"w{choice % 3}", 1 + choice % 4)
        elif action == "complete" and held is not None:
            self.held.remove(held)
            self.ended.append(held)
            self.complete(held)
        elif action == "late" and self.ended:
            with pytest.raises(StaleTicketError):
                self.tasks.complete(self.ended[choice % len(self.ended)].ticket, "late")
        elif action in ("renew", "fail") and held is not None:
            try:
                self.tasks.renew(held.ticket) if action == "renew" else self.tasks.fail(held.ticket, "failed")
            except StaleTicketError:
                self.held.remove(held)
                self.ended.append(held)
        elif action == "kill":
            self.tasks.release(f"w{choice % 3}", "exited")
        elif action == "wait":
            self.clock.now += choice % 13
        elif action == "train":
            self.train()
        elif action == "restart" and choice % 4 == 0:
            self.restart()

    def complete(self, lease: Lease) -> None:
        try:
            self.tasks.complete(lease.ticket, (lease.task, lease.slot))
        except StaleTicketError:
            return

    def state(self) -> tuple[dict[str, Any], Counter[str], int, Counter[str], int]:
        state = json.loads(json.dumps(self.tasks.state_dict()))
        return state, Counter(self.trained), self.admitted, Counter(self.evaluated), self.requested

    def train(self) -> None:
        """Takes what is finished; at B groups a batch is trained and a checkpoint written."""
        while (evaluation := self.tasks.take_evaluation()) is not None:
            assert [tuple(each) for each in evaluation.results] == [
                (evaluation.task, slot) for slot in range(len(evaluation.results))
            ]
            self.evaluated[evaluation.task] += 1
        while len(self.batch) < self.tasks.batch_groups and (found := self.tasks.finished()) is not None:
            self.tasks.take(found.group)
            assert list(found.results) == [(found.task, slot) for slot in range(len(found.results))]
            self.batch.append(found)
        if len(self.batch) == self.tasks.batch_groups:
            for group in self.batch:
                self.trained[group.task] += 1
                self.ages.append(group.age)
            self.batch = []
            self.tasks.trained()
            self.saved = self.state()

    def restart(self) -> None:
        """The driver is killed: queue, trainer and task order continue from their common checkpoint."""
        state, trained, admitted, evaluated, self.requested = self.saved
        generation = self.tasks.generation
        self.tasks = queue(self.clock, **self.options, generation=generation)
        self.tasks.load_state_dict(state)
        self.trained, self.admitted, self.batch = Counter(trained), admitted, []
        self.evaluated = Counter(evaluated)
        self.ended += self.held  # workers go on with tickets of the old queue
        self.held = []


@examples(60)
@given(
    order=st.sampled_from(["admission", "completion"]),
    groups=st.integers(1, 3),
    staleness=st.integers(0, 3),
    steps=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 59)), max_size=80),
)
def test_every_group_is_trained_exactly_once_whatever_happens(
    order: Order, groups: int, staleness: int, steps: list[tuple[str, int]]
) -> None:
    run = Run(order, groups, staleness)
    for action, choice in steps:
        run.act(action, choice)
    while run.admitted % groups:  # complete the last batch
        run.train()
        for lease in run.tasks.lease("w9", 99) + run.held:
            run.complete(lease)
        run.held = []
        if run.tasks.capacity_left() > 0:
            run.act("admit", 0)
    for _ in range(run.admitted + run.requested + 2):
        run.clock.now += 100.0  # what is still leased expires
        finish = run.tasks.lease("w9", 99)
        for lease in finish:
            run.complete(lease)
        run.train()
    assert run.trained == {f"g{number}": 1 for number in range(run.admitted)}
    assert run.evaluated == {f"e{number}": 1 for number in range(run.requested)}
    if order == "admission":
        assert max(run.ages, default=0) <= staleness


def test_completion_order_can_exceed_the_bound_and_reports_the_age() -> None:
    """B = 1, S = 1: group 0 is slow; groups 1 and 2 overtake it, so its age is 2."""
    tasks = queue(batch_groups=1, max_staleness=1, order="completion")
    tasks.admit("slow", 1)
    (slow,) = tasks.lease("w")
    for _ in range(2):
        tasks.admit("fast", 1)
        finish_all(tasks)
        found = tasks.finished()
        assert found is not None
        tasks.take(found.group)
        tasks.trained()
    tasks.complete(slow.ticket, "x")
    found = tasks.finished()
    assert found is not None
    assert (found.group, found.age) == (0, 2)
