"""A queue that is lost at any moment and started again: every group is trained once, as without the loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lamp_groups import GROUPS, SIZE, Learner, lock_step, wins
from lost_queue import Clock, LostQueue
from polling import until
from property_tests import examples

from bepa_torchrl.failures import INFRASTRUCTURE, exit_code
from bepa_torchrl.rollout.weight_sync import ServiceWeightSync
from bepa_torchrl.scale.rollouts import restorable_queue
from bepa_torchrl.scale.rollouts.async_collector import AsyncGroupCollector
from bepa_torchrl.scale.rollouts.env_worker import EnvWorker
from bepa_torchrl.scale.rollouts.evaluations import EvaluationPlan
from bepa_torchrl.scale.rollouts.queue_owner import QueueOwner
from bepa_torchrl.scale.rollouts.restorable_queue import LostStateError, RestorableQueue
from bepa_torchrl.scale.rollouts.rollout_service import RolloutService
from bepa_torchrl.scale.rollouts.task_queue import Lease, StaleTicketError
from bepa_torchrl.testing import LampEnv, ScriptedPolicy, lamp_task, lamp_vector, summary
from osworld_gym.errors import DesktopError, FailureReason

OPTIONS: dict[str, Any] = {"batch_groups": 2, "max_staleness": 1, "lease_seconds": 10.0}


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restorable_queue, "_STATE_SECONDS", 0.0)


@pytest.fixture
def pair() -> Iterator[tuple[QueueOwner, LostQueue]]:
    """An owner whose thread does not look, and its queue."""
    queue = LostQueue(Clock(), **OPTIONS)
    owner = QueueOwner(queue, check_every=3600.0, **OPTIONS)
    yield owner, queue
    owner.stop()


Pair = tuple[QueueOwner, LostQueue]


def finish(queue: LostQueue, leases: list[Lease]) -> None:
    for lease in leases:
        queue.complete(lease.ticket, (lease.task, lease.slot))


def next_results(owner: QueueOwner) -> tuple[Any, ...]:
    group = owner.next_group(0.0)
    assert group is not None
    owner.take(group.group)
    return group.results


def test_leases_and_what_is_played_under_them_survive(pair: Pair) -> None:
    """Group 0 has an open lease and one whose result is lost; it is played again when that one expires."""
    owner, queue = pair
    assert owner.admit("a", 2) == 0
    first, second = queue.lease("w", 2, 0.0)
    owner._check()
    queue.complete(second.ticket, "lost")
    queue.kill()
    assert owner.admit("b", 1) == 1  # notices, and gives the state
    assert owner.describe()["restarts"] == 1
    assert queue.renew([first.ticket]) == []
    queue.complete(first.ticket, "kept")
    with pytest.raises(StaleTicketError):
        queue.complete(first.ticket, "twice")
    assert [lease.group for lease in queue.lease("x", 9, 0.0)] == [1]
    queue._clock.now = 11.0
    (again,) = queue.lease("x", 9, 0.0)[:1]
    assert (again.group, again.slot) == (0, 1)
    with pytest.raises(StaleTicketError):
        queue.complete(second.ticket, "late")
    queue.complete(again.ticket, "played again")
    assert next_results(owner) == ("kept", "played again")


def test_a_lease_that_the_owner_has_not_heard_of_is_played_again_and_its_result_refused(pair: Pair) -> None:
    owner, queue = pair
    owner.admit("a", 1)
    (unknown,) = queue.lease("w", 1, 0.0)
    queue.kill()
    owner._check()
    (again,) = queue.lease("w", 1, 0.0)
    assert again.ticket != unknown.ticket
    with pytest.raises(StaleTicketError):
        queue.complete(unknown.ticket, "late")
    queue.complete(again.ticket, "r")
    assert next_results(owner) == ("r",)


@pytest.mark.parametrize("end", ["take", "drop"])
def test_a_group_that_the_trainer_has_got_is_not_played_again(pair: Pair, end: str) -> None:
    owner, queue = pair
    owner.admit("a", 2)
    owner.admit("b", 1)
    finish(queue, queue.lease("w", 3, 0.0))
    shown = owner.next_group(0.0)
    assert shown is not None
    queue.kill()
    owner._check()
    assert owner.next_group(0.0) is shown
    getattr(owner, end)(shown.group)
    assert owner.capacity_left() == queue.capacity_left() == (2 if end == "take" else 3)
    assert [lease.group for lease in queue.lease("w", 9, 0.0)] == [1]
    with pytest.raises(ValueError, match="group 0 is not finished, or was taken or dropped before"):
        owner.take(0)


def test_a_group_whose_answer_came_from_the_lost_queue_after_the_new_one_had_its_state_is_not_used(pair: Pair) -> None:
    owner, queue = pair
    owner.admit("a", 1)
    finish(queue, queue.lease("w", 1, 0.0))
    old = queue.queue

    def late(timeout: float) -> Any:
        answer = old.next_group(timeout)
        queue.kill()
        owner._check()
        return answer

    queue.next_group = late  # type: ignore[method-assign]
    assert owner.next_group(0.0) is None
    del queue.next_group
    finish(queue, queue.lease("w", 1, 0.0))
    assert next_results(owner) == (("a", 0),)


@pytest.mark.parametrize("kind", ["lost_answers", "sent_twice"])
def test_a_change_is_made_once_whether_it_is_lost_or_sent_twice(pair: Pair, kind: str) -> None:
    owner, queue = pair

    def trouble() -> None:
        getattr(queue, kind).add("apply")

    trouble()
    assert [owner.admit("a", 1), owner.admit("b", 1)] == [0, 1]
    trouble()
    assert owner.admit_evaluation("e", 1) == 0
    finish(queue, queue.lease("w", 9, 0.0))
    owner._check()
    for number in (0, 1):
        assert owner.next_group(0.0) is not None
        trouble()
        owner.take(number)
        finish(queue, queue.lease("w", 9, 0.0))
    trouble()
    owner.trained()
    assert owner.capacity_left() == queue.capacity_left() == 4
    trouble()
    found = owner.next_evaluation(0.0)
    assert found is not None
    assert found.results == (("e", 0),)
    assert owner.next_evaluation(0.0) is None
    assert owner.admit("c", 1) == 2


def test_outcomes_counts_times_workers_and_the_end_of_rollouts_are_remembered(pair: Pair) -> None:
    owner, queue = pair
    owner.admit("a", 1)
    owner.admit_evaluation("e", 3)
    owner.end_rollouts()
    leases = queue.lease("w", 2, 0.0)
    queue.lease("other", 2, 0.0)
    queue._clock.now = 5.0
    queue.complete(leases[0].ticket, {"success": True})
    before = queue.demand()
    owner._check()
    queue.kill()
    owner._check()
    after = queue.demand()
    assert after == before
    described = owner.describe()
    assert (described["completed"], described["desktops"], described["desktop_seconds"]) == (1, 4, 20.0)
    assert queue.lease("w", 9, 0.0) == []  # two are leased, one is played, and rollouts have ended
    for lease in described["leases"]:
        assert (lease["evaluation"], lease["seconds"]) == (0, 5.0)
    queue._clock.now = 16.0
    finish(queue, again := queue.lease("third", 9, 0.0))
    assert [(lease.evaluation, lease.slot) for lease in again] == [(True, 1), (True, 2)]
    found = owner.next_evaluation(0.0)
    assert found is not None
    assert found.results == ({"success": True}, ("e", 1), ("e", 2))


def test_a_checkpoint_begins_anew_and_what_was_remembered_is_not_used(pair: Pair) -> None:
    owner, queue = pair
    owner.admit("a", 1)
    owner.admit_evaluation("e", 1)
    leases = queue.lease("w", 2, 0.0)
    state = owner.state_dict()
    queue.complete(next(lease for lease in leases if lease.evaluation).ticket, {"success": True})
    owner._check()
    owner.load_state_dict(state)
    for lease in leases:
        with pytest.raises(StaleTicketError):
            queue.complete(lease.ticket, "late")
    queue.kill()
    owner._check()
    assert len(queue.lease("w", 9, 0.0)) == 2
    with pytest.raises(ValueError, match=r"resume with the program and the collect\.groups"):
        owner.load_state_dict(state | {"batch_groups": 7})
    assert owner.admit("b", 1) == 1


def test_after_a_change_without_an_answer_the_queue_gets_the_state_before_it(pair: Pair) -> None:
    owner, queue = pair
    owner.admit("a", 1)
    apply, lost = queue.queue.apply, [True]

    def without_answer(*args: Any) -> Any:
        answer = apply(*args)
        if lost:
            lost.pop()
            raise DesktopError(FailureReason.hung, "an actor did not answer apply in 300 s")
        return answer

    queue.queue.apply = without_answer  # type: ignore[method-assign]
    with pytest.raises(DesktopError, match="did not answer apply"):
        owner.admit("b", 1)
    assert owner.admit("c", 1) == 1
    assert [lease.task for lease in queue.lease("w", 9, 0.0)] == ["a", "c"]


@pytest.mark.usefixtures("no_waiting")
def test_without_a_state_nothing_is_leased_and_nothing_is_changed() -> None:
    queue = RestorableQueue(**OPTIONS)
    assert queue.lease("w", 1, 0.0) == []
    assert queue.next_group(0.0) is None
    for call in (lambda: queue.renew(["1-1"]), lambda: queue.apply(1, 1, "admit", "a", 1)):
        with pytest.raises(LostStateError, match="the queue was started again") as raised:
            call()
        assert exit_code(raised.value) == INFRASTRUCTURE
    with pytest.raises(ValueError, match=r"change must be one of admit, .* got 'lease'"):
        queue.apply(1, 1, "lease", "w", 1)


def test_a_thread_gives_the_state_to_workers_that_wait() -> None:
    """The trainer makes no call; a worker's call, which has come before the state, is answered."""
    queue = LostQueue(**OPTIONS)
    owner = QueueOwner(queue, check_every=0.01, **OPTIONS)
    try:
        owner.admit("a", 1)
        (lease,) = queue.lease("w", 1, 30.0)
        until(lambda: owner._memory.leases, "the owner does not know the lease")
        queue.kill()
        queue.complete(lease.ticket, "r")
        assert owner.describe()["restarts"] == 1
        assert next_results(owner) == ("r",)
    finally:
        owner.stop()


def test_the_thread_survives_an_error_and_a_queue_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    queue = LostQueue(**OPTIONS)
    gone = DesktopError(FailureReason.died, "an actor has exited")
    errors = iter([gone, gone, ZeroDivisionError("a bug"), gone])
    memory = queue.memory

    def failing() -> Any:
        if (error := next(errors, None)) is not None:
            raise error
        return memory()

    queue.memory = failing  # type: ignore[method-assign]
    owner = QueueOwner(queue, check_every=0.01, **OPTIONS)
    try:
        assert until_leased(queue, owner)
    finally:
        owner.stop()
    messages = [record.getMessage() for record in caplog.records]
    assert messages.count("health of queue: died: an actor has exited") == 1  # not with each attempt
    assert messages.count("health of queue") == 1


def until_leased(queue: LostQueue, owner: QueueOwner) -> list[Any]:
    owner.admit("a", 1)
    queue.lease("w", 1, 30.0)
    until(lambda: owner._memory.leases, "the owner does not know the lease")
    return list(owner._memory.leases)


@pytest.mark.slow
def test_a_run_whose_queue_is_lost_again_and_again_has_the_batches_of_lock_step() -> None:
    """The queue is lost with five results, before it has them; an evaluation is played meanwhile."""
    evaluation = EvaluationPlan((lamp_task(7), lamp_task(8)), episodes=2, seed=5, temperature=1.0)
    options: dict[str, Any] = {"batch_groups": GROUPS, "max_staleness": 0, "lease_seconds": 0.4}
    queue = LostQueue(**options)
    queue.lost_at = {2, 5, 11, 19, 26}
    owner = QueueOwner(queue, check_every=0.02, **options)
    service, learner = RolloutService(ScriptedPolicy(wins)), Learner(wins)
    collector = AsyncGroupCollector(
        LampEnv(lamp_vector(1)),
        learner,  # type: ignore[arg-type]
        [lamp_task(n) for n in range(5)],
        groups=GROUPS,
        group_size=SIZE,
        seed=3,
        queue=owner,
        weight_sync_schemes={"policy": ServiceWeightSync(service.load_weights)},
        on_shutdown=owner.stop,
        evaluation=evaluation,
        stall_seconds=60.0,
    )
    client: Any = queue
    workers = [
        EnvWorker(
            f"w{n}", client, service, collector.plan, lambda: lamp_vector(1), desktops=2, renew_every=0.1, poll=0.1
        )
        for n in range(2)
    ]
    try:
        batches, found = [], []
        for batch in islice(collector, 4):
            batches.append(summary(batch))
            if len(batches) == 1:
                collector.evaluate(1)
            found += collector.finished_evaluations()
        found += collector.remaining_evaluations()
    finally:
        for worker in workers:
            worker.stop(10.0)
        service.close()
        collector.shutdown()
    assert batches == lock_step(4)
    assert [each.iteration for each in found] == [1]
    assert len(found[0].episodes) == 4
    assert queue.started == 6
    assert 1 <= owner.restarts <= 5  # it may be lost again before it has its state


ACTIONS = ("admit", "lease", "complete", "complete", "late", "renew", "fail", "release", "wait", "train", "drop",
           "evaluate", "look", "kill", "lose", "twice")  # fmt: skip


class Run:
    """A trainer, workers that are slow and fail, and a queue that is lost."""

    def __init__(self, order: str, groups: int, staleness: int) -> None:
        options: dict[str, Any] = {
            "batch_groups": groups, "max_staleness": staleness, "order": order, "max_attempts": 10_000,
            "lease_seconds": 10.0,
        }  # fmt: skip
        self.clock, self.order, self.groups, self.staleness = Clock(), order, groups, staleness
        self.queue = LostQueue(self.clock, **options)
        self.owner = QueueOwner(self.queue, check_every=3600.0, **options)
        self.held: list[Lease] = []
        self.ended: list[Lease] = []
        self.admitted = self.requested = self.in_batch = self.batches = self.dropped = 0
        self.left: Counter[str] = Counter()
        self.numbers: list[int] = []
        self.ages: list[int] = []

    def act(self, action: str, choice: int) -> None:
        held = self.held.pop(choice % len(self.held)) if self.held and action in ("complete", "renew", "fail") else None
        if action == "admit" and self.owner.capacity_left() > 0:
            assert self.owner.admit(f"g{self.admitted}", 1 + choice % 3) == self.admitted
            self.admitted += 1
        elif action == "evaluate":
            assert self.owner.admit_evaluation(f"e{self.requested}", 1 + choice % 3) == self.requested
            self.requested += 1
        elif action == "lease":
            self.held += self.queue.lease(f"w{choice % 3}", 1 + choice % 4, 0.0)
        elif held is not None:
            self.report(action, held)
        elif action == "late" and self.ended:
            with pytest.raises((StaleTicketError, LostStateError)):
                self.queue.complete(self.ended[choice % len(self.ended)].ticket, "late")
        elif action == "release":
            self.attempt(lambda: self.queue.release(f"w{choice % 3}", "exited"))
        elif action == "wait":
            self.clock.now += choice % 13
        elif action in ("train", "drop"):
            self.train(drop=action == "drop")
        elif action == "look":
            self.owner._check()
        elif action == "kill":
            self.queue.kill()
        elif action in ("lose", "twice"):
            kind = self.queue.lost_answers if action == "lose" else self.queue.sent_twice
            kind ^= {"apply" if choice % 2 else "complete"} if action == "lose" else {"apply"}

    @staticmethod
    def attempt(call: Any) -> bool:
        """Whether the queue has answered."""
        try:
            call()
        except (StaleTicketError, LostStateError) as error:
            return isinstance(error, StaleTicketError)
        return True

    def report(self, action: str, lease: Lease) -> None:
        calls = {
            "complete": lambda: self.queue.complete(lease.ticket, (lease.task, lease.slot)),
            "fail": lambda: self.queue.fail(lease.ticket, "failed"),
            "renew": lambda: self.queue.renew([lease.ticket]),
        }
        answered = self.attempt(calls[action])
        (self.ended if answered and action != "renew" else self.held).append(lease)

    def train(self, *, drop: bool = False) -> None:
        while (evaluation := self.owner.next_evaluation(0.0)) is not None:
            assert list(evaluation.results) == [(evaluation.task, slot) for slot in range(evaluation.size)]
            self.left[evaluation.task] += 1
        while (group := self.owner.next_group(0.0)) is not None:
            assert list(group.results) == [(group.task, slot) for slot in range(group.size)]
            self.left[group.task] += 1
            self.numbers.append(group.group)
            if drop:
                self.owner.drop(group.group)
                self.dropped += 1
                return
            self.owner.take(group.group)
            self.ages.append(group.age)
            self.in_batch += 1
            if self.in_batch == self.groups:
                self.owner.trained()
                self.in_batch, self.batches = 0, self.batches + 1
        room = (self.batches + 1 + self.staleness) * self.groups - (self.admitted - self.dropped)
        assert self.owner.capacity_left() == room

    def drain(self) -> None:
        """Everything that was admitted is played and taken."""
        self.queue.lost_answers.clear()
        self.owner._check()
        for _ in range(10_000):
            self.clock.now += 11.0
            leases = self.queue.lease("w", 100, 0.0)
            finish(self.queue, leases)
            self.train()
            if sum(self.left.values()) == self.admitted + self.requested:
                return
        raise AssertionError(self.owner.describe())


@pytest.mark.usefixtures("no_waiting")
@examples(60)
@given(
    order=st.sampled_from(["admission", "completion"]),
    groups=st.integers(1, 3),
    staleness=st.integers(0, 3),
    steps=st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 59)), max_size=80),
)
def test_every_group_is_trained_once_whenever_the_queue_is_lost(
    order: str, groups: int, staleness: int, steps: list[tuple[str, int]]
) -> None:
    run = Run(order, groups, staleness)
    try:
        for action, choice in steps:
            run.act(action, choice)
        run.drain()
    finally:
        run.owner.stop()
    names = [f"g{n}" for n in range(run.admitted)] + [f"e{n}" for n in range(run.requested)]
    assert run.left == dict.fromkeys(names, 1)
    if order == "admission":
        assert run.numbers == list(range(run.admitted))
        assert max(run.ages, default=0) <= staleness
