"""TaskQueue: groups of episodes from admission to training; nothing is lost, nothing is trained twice.

A group has a fixed number of slots. Each slot is waiting, leased to a worker, or finished. A lease has a ticket and a
deadline; unless it is renewed, the slot waits again, and a late result of the old ticket is refused. A slot that a
worker has lost goes to another one, if there is one. Tasks and results are passed through without being read. All times
are of one monotonic clock, the queue's own, so that clocks of other machines do not matter. Not thread-safe: the owner
calls it from one thread at a time.

Evaluations are kept apart from groups, with their own numbers: they are leased to the same workers, and are never among
the groups to train.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

from bepa_torchrl.scale.rollouts.queue_state import (
    ActiveLease,
    ActiveLeases,
    DesktopDemand,
    FinishedGroup,
    Group,
    KnownWorkers,
    Lease,
    LeaseMemory,
    QueueMemory,
    ReadyCounts,
    StaleTicketError,
    WaitingSlots,
)

Order = Literal["admission", "completion"]
__all__ = ["FinishedGroup", "Lease", "Order", "StaleTicketError", "TaskQueue"]
FORMAT, VERSION = "bepa_torchrl.task_queue", 1
#: while an evaluation waits, one lease of this number is its; if no rollout waits, every lease is
EVALUATION_EVERY = 4
#: workers on which an episode may fail because of the infrastructure, each after its own retries
MAX_FAILURES = 3


class TaskQueue:
    """The queue.

    Args:
        batch_groups: groups per batch (B).
        max_staleness: batches that may be trained between a group's admission and its own training (S).
        order: ``admission`` trains groups in the order of admission, so that S is never exceeded; ``completion`` trains
            what is finished first, which keeps desktops and trainer busier: then S bounds the number of groups in
            flight, while a group that is overtaken gets older.
        lease_seconds: until a lease ends without renewal.
        max_attempts: leases of a slot until it is given up.
        generation: differs each time a queue is made or restored in one run, so that tickets do.
        clock: monotonic seconds.

    Raises:
        ValueError: a value out of range.
    """

    def __init__(
        self,
        *,
        batch_groups: int,
        max_staleness: int,
        order: Order = "admission",
        lease_seconds: float = 60.0,
        max_attempts: int = 5,
        generation: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if batch_groups < 1 or max_staleness < 0 or max_attempts < 1 or lease_seconds <= 0:
            raise ValueError(
                "a queue requires batch_groups >= 1, max_staleness >= 0, max_attempts >= 1 and lease_seconds > 0; got "
                f"{batch_groups}, {max_staleness}, {max_attempts} and {lease_seconds}"
            )
        if order not in get_args(Order):
            raise ValueError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}")
        self.batch_groups, self.max_staleness, self.order = batch_groups, max_staleness, order
        self.lease_seconds, self.max_attempts, self._clock = lease_seconds, max_attempts, clock
        self.generation = generation
        self.batches = 0  #: trained
        self.admitted = self.dropped = 0  #: groups
        self.counts: Counter[str] = Counter()  #: events, for status
        self.events = ReadyCounts(0, 0, 0)
        self._groups: dict[int, Group] = {}  #: admitted and not taken, in the order of admission
        self._done: list[int] = []  #: finished and not taken, in the order of completion
        self._evaluations: dict[int, Group] = {}  #: admitted and not reported
        self._evaluations_admitted = 0
        self._waiting, self._waiting_evaluations = WaitingSlots(), WaitingSlots()
        self._rollouts_leased = 0  #: since the last lease of an evaluation
        self._rollouts_ended = False
        self._leases, self._workers = ActiveLeases(), KnownWorkers(lease_seconds)
        self._tickets = 0
        self._counted_at = clock()
        self._busy_seconds = self._desktop_seconds = 0.0  #: of all leases; of all desktops

    # --- admission ----------------------------------------------------------------------------------------------

    def capacity_left(self) -> int:
        """Groups that may be admitted now: while ``admitted - dropped < (batches + 1 + S) B``."""
        return (self.batches + 1 + self.max_staleness) * self.batch_groups - (self.admitted - self.dropped)

    def admit(self, task: Any, size: int) -> int:
        """Adds a group and returns its number.

        Raises:
            ValueError: the queue is full, or ``size`` is below 1.
        """
        if size < 1:
            raise ValueError(f"a group requires at least one slot, got {size}")
        if self.capacity_left() < 1:
            raise ValueError(
                f"the queue is full: {self.admitted} groups were admitted for {self.batches} trained batches of "
                f"{self.batch_groups} at max_staleness={self.max_staleness}; admit at most capacity_left() groups"
            )
        number = self.admitted
        self._groups[number] = Group(number, False, task, size, self.batches)
        self._wait(self._groups[number], range(size))
        self.admitted += 1
        return number

    def admit_evaluation(self, task: Any, size: int) -> int:
        """Adds an evaluation and returns its number; ``capacity_left`` does not apply. Raises ValueError: no slot."""
        if size < 1:
            raise ValueError(f"an evaluation requires at least one slot, got {size}")
        number = self._evaluations_admitted
        self._evaluations[number] = Group(number, True, task, size, self.batches)
        self._wait(self._evaluations[number], range(size))
        self._evaluations_admitted += 1
        return number

    def _wait(self, group: Group, slots: Sequence[int]) -> None:
        """These slots wait for a worker."""
        (self._waiting_evaluations if group.evaluation else self._waiting).add(group, slots)
        self.events = self.events._replace(slots=self.events.slots + len(slots))

    def _wait_no_more(self, group: Group, slot: int) -> None:
        (self._waiting_evaluations if group.evaluation else self._waiting).remove(group, slot)

    def end_rollouts(self) -> None:
        """No more rollouts are leased; evaluations are. Not part of the state."""
        self._rollouts_ended = True

    # --- workers ------------------------------------------------------------------------------------------------

    def lease(self, worker: str, limit: int = 1) -> list[Lease]:
        """At most ``limit`` waiting slots, of the oldest groups first; empty if none waits for this worker.

        While evaluations wait, they get every :data:`EVALUATION_EVERY`-th lease, and those for which no rollout waits.
        A slot that this worker has lost, or failed to play, is for others, if any. Limit 0: it will be there soon.
        """
        self.expire()
        self._count_busy()
        self._workers.record_heartbeat(worker, self._clock(), self._leases.held[worker] + limit)
        leases: list[Lease] = []
        while len(leases) < limit and (waiting := self._next_waiting(worker)) is not None:
            leases.append(self._lease(worker, *waiting))
        return leases

    def _next_waiting(self, worker: str) -> tuple[Group, int] | None:
        def wanted(group: Group, slot: int) -> bool:
            if slot not in group.lost_by:
                return True
            kinds = (group.failed_on(slot), group.lost_by[slot])
            return not any(worker in kind and self._workers.other_than(kind, self._clock()) for kind in kinds)

        rollout = None if self._rollouts_ended else self._waiting.first(wanted)
        if rollout is None or self._rollouts_leased + 1 >= EVALUATION_EVERY:
            return self._waiting_evaluations.first(wanted) or rollout
        return rollout

    def _count_busy(self) -> None:
        """Counts the time of leases and desktops; called before their number changes."""
        now = self._clock()
        self._busy_seconds += len(self._leases) * (now - self._counted_at)
        self._desktop_seconds += max(len(self._leases), self._workers.desktops) * (now - self._counted_at)
        self._counted_at = now

    def _lease(self, worker: str, group: Group, slot: int) -> Lease:
        now = self._clock()
        self._wait_no_more(group, slot)
        group.attempts[slot] += 1
        self._tickets += 1
        self._rollouts_leased = 0 if group.evaluation else self._rollouts_leased + 1
        ticket = f"{self.generation}-{self._tickets}"
        self._leases.add(ticket, ActiveLease(group, slot, worker, now + self.lease_seconds, now))
        return Lease(ticket, group.number, slot, group.task, group.attempts[slot], group.evaluation)

    def renew(self, ticket: str) -> None:
        """Extends a lease. Raises StaleTicketError if it has ended; then the worker should stop this episode."""
        self._extend(self._active(ticket))

    def renew_all(self, tickets: Sequence[str]) -> list[str]:
        """Extends leases; returns the tickets whose lease has ended."""
        self.expire()
        active = {ticket: lease for ticket in tickets if (lease := self._leases.get(ticket)) is not None}
        for lease in active.values():
            self._extend(lease)
        return [ticket for ticket in tickets if ticket not in active]

    def _extend(self, lease: ActiveLease) -> None:
        now = self._clock()
        lease.deadline = now + self.lease_seconds
        self._workers.record_heartbeat(lease.worker, now)

    def leased(self, ticket: str) -> Lease:
        """The lease of a ticket, as it was given. Raises StaleTicketError if it has ended."""
        lease = self._active(ticket)
        group, slot = lease.group, lease.slot
        return Lease(ticket, group.number, slot, group.task, group.attempts[slot], group.evaluation)

    def complete(self, ticket: str, result: Any) -> None:
        """Stores the slot's result. Raises StaleTicketError if the lease has ended; the result is then not used."""
        lease = self._active(ticket)
        self._count_busy()
        self._leases.pop(ticket)
        self._workers.record_heartbeat(lease.worker, self._clock())
        self.counts["completed"] += 1
        self._finish_slot(lease.group, lease.slot, result)

    def fail(self, ticket: str, reason: str, result: Any = None) -> None:
        """Ends a lease without a usable result: the slot waits again, or is given up after ``max_attempts`` leases.

        Args:
            ticket: the ticket of the lease.
            reason: in words.
            result: of an episode that failed because of the infrastructure, after all its retries. It is then for
                another worker: the slot is given up if it has failed on :data:`MAX_FAILURES`, or if there is no other;
                this is then its result.

        Raises:
            StaleTicketError: the lease has ended.
        """
        lease = self._active(ticket)
        self._workers.record_heartbeat(lease.worker, self._clock())
        last = False
        if result is not None:
            failed = lease.group.failures.setdefault(lease.slot, [])
            failed.append((lease.worker, result))
            others = self._workers.other_than(lease.group.failed_on(lease.slot), self._clock())
            last = len(failed) >= MAX_FAILURES or not others
        self._end(ticket, reason, result, last=last)

    def release(self, worker: str, reason: str) -> int:
        """Ends all leases of a worker that has exited; returns how many."""
        self._count_busy()
        self._workers.forget(worker)
        tickets = self._leases.of(worker)
        for ticket in tickets:
            self._end(ticket, reason)
        return len(tickets)

    def resize(self, worker: str, desktops: int) -> None:
        """A worker has closed desktops, or made them again: it has so many now."""
        self._count_busy()
        self._workers.resize(worker, desktops)

    def expire(self) -> int:
        """Ends the leases whose deadline has passed; returns how many."""
        expired = self._leases.expired(self._clock())
        for ticket, lease in expired:
            self._end(ticket, f"the lease of {lease.worker} expired")
        return len(expired)

    def _active(self, ticket: str) -> ActiveLease:
        self.expire()
        lease = self._leases.get(ticket)
        if lease is None:
            self.counts["refused"] += 1
            raise StaleTicketError(f"the lease {ticket} has ended: another worker got its slot, or it is finished")
        return lease

    def _end(self, ticket: str, reason: str, result: Any = None, *, last: bool = False) -> None:
        self._count_busy()
        lease = self._leases.pop(ticket)
        group, slot = lease.group, lease.slot
        group.lost_by.setdefault(slot, set()).add(lease.worker)
        attempt = group.attempts[slot]
        if not last and attempt < self.max_attempts:
            self.counts["requeued"] += 1
            self._wait(group, (slot,))
        else:
            self.counts["given_up"] += 1
            group.reasons[slot] = f"{reason} (attempt {attempt} of {self.max_attempts})"
            self._finish_slot(group, slot, result)

    def _finish_slot(self, group: Group, slot: int, result: Any) -> None:
        group.results[slot] = result
        if not group.finished:
            return
        if group.evaluation:
            self.events = self.events._replace(evaluations=self.events.evaluations + 1)
        else:
            self.events = self.events._replace(groups=self.events.groups + 1)
            self._done.append(group.number)

    # --- trainer ------------------------------------------------------------------------------------------------

    def finished(self) -> FinishedGroup | None:
        """The next group to look at, in ``order``, without removing it; None if it is not finished yet."""
        self.expire()
        number = next(iter(self._done if self.order == "completion" else self._groups), None)
        if number is None or not self._groups[number].finished:
            return None
        return self._groups[number].ended(self.batches)

    def take_evaluation(self) -> FinishedGroup | None:
        """Removes and returns the oldest finished evaluation; None if there is none."""
        self.expire()
        number = self._finished_evaluation()
        return None if number is None else self._evaluations.pop(number).ended(self.batches)

    def evaluation_is_finished(self) -> bool:
        """Whether :meth:`take_evaluation` returns one."""
        self.expire()
        return self._finished_evaluation() is not None

    def _finished_evaluation(self) -> int | None:
        return next((number for number, each in self._evaluations.items() if each.finished), None)

    def take(self, group: int) -> None:
        """Removes a finished group, to be trained. Raises ValueError if it is not finished, or was taken."""
        self._remove(group)
        self.counts["taken"] += 1

    def drop(self, group: int) -> None:
        """Removes a finished group that cannot be trained; another may be admitted. Raises as :meth:`take`."""
        self._remove(group)
        self.dropped += 1

    def _remove(self, group: int) -> None:
        if group not in self._done:
            raise ValueError(f"group {group} is not finished, or was taken or dropped before")
        self._done.remove(group)
        del self._groups[group]

    def trained(self) -> None:
        """A batch was trained: more groups may be admitted."""
        self.batches += 1

    def demand(self, held_up_seconds: float) -> DesktopDemand:
        """What desktops are needed for, as far as they may be leased; the trainer has waited for so many seconds."""
        self._count_busy()
        waiting = len(self._waiting_evaluations) + (0 if self._rollouts_ended else len(self._waiting))
        return DesktopDemand(len(self._leases), waiting, self._busy_seconds, held_up_seconds)

    # --- state --------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Counts, the seconds of leases and desktops so far, and what every lease waits for, as JSON values."""
        self._count_busy()
        now = self._clock()
        self._workers.forget_silent(now)
        return {
            "batches": self.batches,
            "admitted": self.admitted,
            "dropped": self.dropped,
            "waiting_slots": len(self._waiting),
            "open_groups": len(self._groups) - len(self._done),
            "finished_groups": len(self._done),
            "evaluations": len(self._evaluations),
            "waiting_evaluation_slots": len(self._waiting_evaluations),
            "desktops": self._workers.desktops,
            "busy_seconds": round(self._busy_seconds, 3),
            "desktop_seconds": round(self._desktop_seconds, 3),
            "leases": self._leases.describe(now),
            **self.counts,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state, JSON-compatible if the tasks and the results of evaluations are.

        Results of groups are not saved: groups that were not taken run again. Those of evaluations are.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "batch_groups": self.batch_groups,
            "generation": self.generation,
            "batches": self.batches,
            "admitted": self.admitted,
            "dropped": self.dropped,
            "groups": [[number, each.task, each.size, each.admitted_at] for number, each in self._groups.items()],
            "evaluations_admitted": self._evaluations_admitted,
            "evaluations": [
                [number, each.task, each.size, each.admitted_at, [[slot, each.results[slot]] for slot in each.results]]
                for number, each in self._evaluations.items()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a ``state_dict``: what was not taken waits again; old tickets are refused.

        Raises:
            ValueError: the state has another format or batch size.
        """
        expected = (FORMAT, VERSION, self.batch_groups)
        actual = (state.get("format"), state.get("version"), state.get("batch_groups"))
        if actual != expected:
            raise ValueError(
                f"expected format, version and batch_groups {expected}, got {actual}; resume with the program and the "
                "collect.groups that wrote the checkpoint"
            )
        self.generation = max(self.generation, int(state["generation"])) + 1
        self.batches, self.admitted, self.dropped = (int(state[name]) for name in ("batches", "admitted", "dropped"))
        self._done, self._leases, self._workers = [], ActiveLeases(), KnownWorkers(self.lease_seconds)
        self._waiting, self._waiting_evaluations = WaitingSlots(), WaitingSlots()
        self._groups, self._evaluations = {}, {}
        rows: Sequence[Sequence[Any]] = state["groups"]
        for number, task, size, admitted_at in rows:
            group = self._groups[int(number)] = Group(int(number), False, task, int(size), int(admitted_at))
            self._wait(group, range(group.size))
        self._evaluations_admitted = int(state.get("evaluations_admitted", 0))  # not in checkpoints of earlier versions
        for number, task, size, admitted_at, results in state.get("evaluations", []):
            group = self._evaluations[int(number)] = Group(int(number), True, task, int(size), int(admitted_at))
            group.results = {int(slot): result for slot, result in results if result is not None}
            self._wait(group, [slot for slot in range(group.size) if slot not in group.results])

    def memory(self) -> QueueMemory:
        """What :meth:`recall` gives to another queue with the same state."""
        self._count_busy()
        now, leases = self._clock(), self._leases.items()
        return QueueMemory(
            [
                LeaseMemory(ticket, each.worker, group.evaluation, group.number, slot, group.attempts[slot], seconds)
                for ticket, each in leases
                for group, slot, seconds in [(each.group, each.slot, now - each.started)]
            ],
            {
                number: {slot: result for slot, result in each.results.items() if result is not None}
                for number, each in self._evaluations.items()
            },
            self._workers.sizes(),
            dict(self.counts),
            self._busy_seconds,
            self._desktop_seconds,
        )

    def recall(self, memory: QueueMemory) -> None:
        """Goes on with the leases, outcomes, workers and counts of another queue, after its state was loaded.

        Leases begin again, with their tickets; those of workers that are gone expire. What does not fit the state is
        left out: a slot that was finished since waits, so that it is played again.
        """
        now = self._counted_at = self._clock()
        self.counts = Counter(memory.counts)
        self._busy_seconds, self._desktop_seconds = memory.busy_seconds, memory.desktop_seconds
        for worker, desktops in memory.workers.items():
            self._workers.record_heartbeat(worker, now, desktops)
        for number, outcomes in memory.outcomes.items():
            evaluation = self._evaluations.get(number)
            for slot in [] if evaluation is None else [slot for slot in evaluation.waiting if slot in outcomes]:
                assert evaluation is not None
                self._wait_no_more(evaluation, slot)
                self._finish_slot(evaluation, slot, outcomes[slot])
        for lease in memory.leases:
            group = (self._evaluations if lease.evaluation else self._groups).get(lease.group)
            if group is not None and lease.slot in group.waiting:
                self._wait_no_more(group, lease.slot)
                group.attempts[lease.slot] = lease.attempt
                active = ActiveLease(group, lease.slot, lease.worker, now + self.lease_seconds, now - lease.seconds)
                self._leases.add(lease.ticket, active)

    def close(self, number: int, *, evaluation: bool = False) -> None:
        """Finishes what waits of a group, or of an evaluation, without results: the trainer has got them elsewhere."""
        group = (self._evaluations if evaluation else self._groups)[number]
        for slot in list(group.waiting):
            self._wait_no_more(group, slot)
            self._finish_slot(group, slot, None)
