"""TaskQueue: groups of episodes from admission to training; nothing is lost, nothing is trained twice.

A group has a fixed number of slots. Each slot is waiting, leased to a worker, or finished. A lease has a ticket and a
deadline; unless it is renewed, the slot waits again, and a late result of the old ticket is refused. Tasks and results
are passed through without being read. All times are of one monotonic clock, the queue's own, so that clocks of other
machines do not matter. Not thread-safe: the owner calls it from one thread at a time.

Evaluations are kept apart from groups, with their own numbers: they are leased to the same workers, and are never among
the groups to train.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from bepa_torchrl.distributed.leases import FinishedGroup, Lease, StaleTicketError

Order = Literal["admission", "completion"]
__all__ = ["FinishedGroup", "Lease", "Order", "StaleTicketError", "TaskQueue"]
FORMAT, VERSION = "bepa_torchrl.task_queue", 1
#: while an evaluation waits, one lease of this number is its; if no rollout waits, every lease is
EVALUATION_EVERY = 4


@dataclass(slots=True)
class _Group:
    task: Any
    size: int
    admitted_at: int  #: batches trained before its admission
    waiting: deque[int]
    results: dict[int, Any] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    reasons: dict[int, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return len(self.results) == self.size


@dataclass(slots=True)
class _ActiveLease:
    number: int
    group: _Group
    evaluation: bool
    slot: int
    worker: str
    deadline: float
    started: float


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
        self._groups: dict[int, _Group] = {}  #: admitted and not taken, in the order of admission
        self._done: list[int] = []  #: finished and not taken, in the order of completion
        self._evaluations: dict[int, _Group] = {}  #: admitted and not reported
        self._evaluations_admitted = 0
        self._rollouts_leased = 0  #: since the last lease of an evaluation
        self._rollouts_ended = False
        self._leases: dict[str, _ActiveLease] = {}
        self._tickets = 0
        self._counted_at = clock()
        self._busy_seconds = 0.0  #: of all leases

    # --- admission ----------------------------------------------------------------------------------------------

    def room(self) -> int:
        """Groups that may be admitted now: while ``admitted - dropped < (batches + 1 + S) B``."""
        return (self.batches + 1 + self.max_staleness) * self.batch_groups - (self.admitted - self.dropped)

    def admit(self, task: Any, size: int) -> int:
        """Adds a group and returns its number.

        Raises:
            ValueError: there is no room, or ``size`` is below 1.
        """
        if size < 1:
            raise ValueError(f"a group requires at least one slot, got {size}")
        if self.room() < 1:
            raise ValueError(
                f"no room: {self.admitted} groups were admitted for {self.batches} trained batches of "
                f"{self.batch_groups} at max_staleness={self.max_staleness}; admit at most room() groups"
            )
        number = self.admitted
        self._groups[number] = _Group(task, size, self.batches, deque(range(size)))
        self.admitted += 1
        return number

    def admit_evaluation(self, task: Any, size: int) -> int:
        """Adds an evaluation and returns its number; ``room`` does not apply. Raises ValueError: no slot."""
        if size < 1:
            raise ValueError(f"an evaluation requires at least one slot, got {size}")
        number = self._evaluations_admitted
        self._evaluations[number] = _Group(task, size, self.batches, deque(range(size)))
        self._evaluations_admitted += 1
        return number

    def end_rollouts(self) -> None:
        """No more rollouts are leased; evaluations are. Not part of the state."""
        self._rollouts_ended = True

    # --- workers ------------------------------------------------------------------------------------------------

    def lease(self, worker: str, limit: int = 1) -> list[Lease]:
        """At most ``limit`` waiting slots, of the oldest groups first; empty if none waits.

        While evaluations wait, they get every :data:`EVALUATION_EVERY`-th lease, and those for which no rollout waits.
        """
        self.expire()
        leases: list[Lease] = []
        while len(leases) < limit and (found := self._next_waiting()) is not None:
            leases.append(self._lease(worker, *found))
        return leases

    def _next_waiting(self) -> tuple[int, _Group, bool] | None:
        """What is leased next: number, group, and whether it is an evaluation."""
        groups = {} if self._rollouts_ended else self._groups
        rollout = next((number for number, group in groups.items() if group.waiting), None)
        if rollout is None or self._rollouts_leased + 1 >= EVALUATION_EVERY:
            for number, group in self._evaluations.items():
                if group.waiting:
                    return number, group, True
        return None if rollout is None else (rollout, groups[rollout], False)

    def _count_busy(self) -> None:
        """Counts the time of the leases; called before one begins or ends."""
        now = self._clock()
        self._busy_seconds += len(self._leases) * (now - self._counted_at)
        self._counted_at = now

    def _lease(self, worker: str, number: int, group: _Group, evaluation: bool) -> Lease:
        self._count_busy()
        slot, now = group.waiting.popleft(), self._clock()
        group.attempts[slot] += 1
        self._tickets += 1
        self._rollouts_leased = 0 if evaluation else self._rollouts_leased + 1
        ticket = f"{self.generation}-{self._tickets}"
        self._leases[ticket] = _ActiveLease(number, group, evaluation, slot, worker, now + self.lease_seconds, now)
        return Lease(ticket, number, slot, group.task, group.attempts[slot], evaluation)

    def renew(self, ticket: str) -> None:
        """Extends a lease. Raises StaleTicketError if it has ended; then the worker should stop this episode."""
        self._active(ticket).deadline = self._clock() + self.lease_seconds

    def renewed(self, ticket: str) -> bool:
        """Extends a lease, unless it has ended; returns whether it has not."""
        self.expire()
        if found := ticket in self._leases:
            self.renew(ticket)
        return found

    def complete(self, ticket: str, result: Any) -> None:
        """Stores the slot's result. Raises StaleTicketError if the lease has ended; the result is then not used."""
        lease = self._active(ticket)
        self._count_busy()
        del self._leases[ticket]
        self.counts["completed"] += 1
        self._finish_slot(lease, result)

    def fail(self, ticket: str, reason: str) -> None:
        """Ends a lease without a result: the slot waits again, or is given up after ``max_attempts`` leases.

        Raises:
            StaleTicketError: the lease has ended.
        """
        self._active(ticket)
        self._end(ticket, reason)

    def release(self, worker: str, reason: str) -> int:
        """Ends all leases of a worker that has exited; returns how many."""
        tickets = [ticket for ticket, lease in self._leases.items() if lease.worker == worker]
        for ticket in tickets:
            self._end(ticket, reason)
        return len(tickets)

    def expire(self) -> int:
        """Ends the leases whose deadline has passed; returns how many."""
        now = self._clock()
        tickets = [ticket for ticket, lease in self._leases.items() if lease.deadline <= now]
        for ticket in tickets:
            self._end(ticket, f"the lease of {self._leases[ticket].worker} expired")
        return len(tickets)

    def _active(self, ticket: str) -> _ActiveLease:
        self.expire()
        if ticket not in self._leases:
            self.counts["refused"] += 1
            raise StaleTicketError(
                f"the lease {ticket} has ended: its slot was given to another worker, or is finished"
            )
        return self._leases[ticket]

    def _end(self, ticket: str, reason: str) -> None:
        self._count_busy()
        lease = self._leases.pop(ticket)
        group = lease.group
        if group.attempts[lease.slot] < self.max_attempts:
            self.counts["requeued"] += 1
            group.waiting.append(lease.slot)
        else:
            self.counts["given_up"] += 1
            group.reasons[lease.slot] = f"{reason} (attempt {self.max_attempts} of {self.max_attempts})"
            self._finish_slot(lease, None)

    def _finish_slot(self, lease: _ActiveLease, result: Any) -> None:
        lease.group.results[lease.slot] = result
        if lease.group.finished and not lease.evaluation:
            self._done.append(lease.number)

    # --- trainer ------------------------------------------------------------------------------------------------

    def finished(self) -> FinishedGroup | None:
        """The next group to look at, in ``order``, without removing it; None if it is not finished yet."""
        self.expire()
        if self.order == "completion":
            number = self._done[0] if self._done else None
        else:
            number = next(iter(self._groups), None)
        if number is None or not self._groups[number].finished:
            return None
        return self._finished(number, self._groups[number])

    def _finished(self, number: int, group: _Group) -> FinishedGroup:
        results = tuple(group.results[slot] for slot in range(group.size))
        return FinishedGroup(number, group.task, results, dict(group.reasons), self.batches - group.admitted_at)

    def take_evaluation(self) -> FinishedGroup | None:
        """Removes and returns the oldest finished evaluation; None if there is none."""
        self.expire()
        number = next((number for number, each in self._evaluations.items() if each.finished), None)
        return None if number is None else self._finished(number, self._evaluations.pop(number))

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

    # --- state --------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Counts, the seconds of all leases so far, and what every lease waits for, as JSON-compatible values."""
        self._count_busy()
        now = self._clock()
        leases = [
            {
                "worker": lease.worker,
                "evaluation" if lease.evaluation else "group": lease.number,
                "slot": lease.slot,
                "seconds": round(now - lease.started, 3),
            }
            for lease in self._leases.values()
        ]
        return {
            "batches": self.batches,
            "admitted": self.admitted,
            "dropped": self.dropped,
            "waiting_slots": sum(len(group.waiting) for group in self._groups.values()),
            "open_groups": len(self._groups) - len(self._done),
            "finished_groups": len(self._done),
            "evaluations": len(self._evaluations),
            "waiting_evaluation_slots": sum(len(group.waiting) for group in self._evaluations.values()),
            "busy_seconds": round(self._busy_seconds, 3),
            "leases": leases,
            **self.counts,
        }

    def state_dict(self) -> dict[str, Any]:
        """JSON-compatible if the tasks and the results of evaluations are.

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
        found = (state.get("format"), state.get("version"), state.get("batch_groups"))
        if found != expected:
            raise ValueError(
                f"expected format, version and batch_groups {expected}, got {found}; resume with the program and the "
                "collect.groups that wrote the checkpoint"
            )
        self.generation = max(self.generation, int(state["generation"])) + 1
        self.batches, self.admitted, self.dropped = (int(state[name]) for name in ("batches", "admitted", "dropped"))
        rows: Sequence[Sequence[Any]] = state["groups"]
        self._groups = {
            int(number): _Group(task, int(size), int(admitted_at), deque(range(int(size))))
            for number, task, size, admitted_at in rows
        }
        self._done, self._leases = [], {}
        self._evaluations = {}
        self._evaluations_admitted = int(state.get("evaluations_admitted", 0))  # not in checkpoints of earlier versions
        for number, task, size, admitted_at, results in state.get("evaluations", []):
            kept = {int(slot): result for slot, result in results if result is not None}
            waiting = deque(slot for slot in range(int(size)) if slot not in kept)
            self._evaluations[int(number)] = _Group(task, int(size), int(admitted_at), waiting, kept)
