"""What the queue gives to workers and to the trainer, and what it remembers of leases and of workers."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class StaleTicketError(ValueError):
    """The lease of this ticket has ended: its slot was given to another worker, or is finished."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One slot, given to one worker.

    Args:
        ticket: identifies this lease; never used again, also not after the queue was restored.
        group: number of the group, in the order of admission; or of the evaluation.
        slot: index in the group.
        task: the group's task, as it was admitted.
        attempt: 1 for the slot's first lease.
        evaluation: whether it is an episode of an evaluation.
    """

    ticket: str
    group: int
    slot: int
    task: Any
    attempt: int
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A group, or an evaluation, whose slots are all finished.

    Args:
        group: its number.
        task: its task.
        size: number of slots that were admitted.
        results: per slot the result; of a slot that was given up that of its last failed lease, None if it has none.
        reasons: slot to reason, for slots that were given up.
        age: batches that were trained between the group's admission and now.
        failures: slot to the results of its failed leases, without the one in ``results``.
    """

    group: int
    task: Any
    size: int
    results: tuple[Any, ...]
    reasons: Mapping[int, str]
    age: int
    failures: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)


class ReadyCounts(NamedTuple):
    """What has become available so far, so that those who wait are woken for a reason only."""

    slots: int  #: that wait for a worker, each time that they do
    groups: int  #: finished
    evaluations: int  #: finished


class DesktopDemand(NamedTuple):
    """What desktops are needed for, and have done so far."""

    playing: int  #: episodes, now
    waiting: int  #: slots that wait for a desktop, now
    busy_seconds: float  #: that desktops played, summed over them
    held_up_seconds: float  #: that the trainer waited for a group or an evaluation


class LeaseMemory(NamedTuple):
    """A lease, without its deadline."""

    ticket: str
    worker: str
    evaluation: bool
    group: int
    slot: int
    attempt: int
    seconds: float  #: since it began


@dataclass(frozen=True, slots=True)
class QueueMemory:
    """What a queue has in addition to its state, without the results of groups.

    Args:
        leases: all that have not ended.
        outcomes: evaluation to slot to result, as far as they are played.
        workers: desktops of each worker that was heard of.
        counts: of events.
        busy_seconds: that desktops played, summed over them.
        desktop_seconds: that they were there.
        held_up_seconds: that the trainer waited for a group or an evaluation.
    """

    leases: Sequence[LeaseMemory] = ()
    outcomes: Mapping[int, Mapping[int, Any]] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    busy_seconds: float = 0.0
    desktop_seconds: float = 0.0
    held_up_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnedState:
    """What the owner of a queue in another process gives to one that has been started.

    Args:
        generation: number of the restoration; none twice.
        state: a ``state_dict`` of the queue.
        memory: what is known in addition.
        shown: a group whose results the trainer has got, and has neither taken nor dropped yet.
        rollouts_ended: whether no rollout is leased any more.
        applied: number of the last change that the state has.
    """

    generation: int
    state: Mapping[str, Any]
    memory: QueueMemory
    shown: int | None
    rollouts_ended: bool
    applied: int


@dataclass(slots=True)
class Group:
    """A group, or an evaluation, in the queue.

    Args:
        number: among the groups, or among the evaluations.
        evaluation: which of the two.
        task: as admitted.
        size: number of slots.
        admitted_at: batches trained before its admission.
        waiting: slots that wait for a worker.
        results: the results of finished slots.
        attempts: leases of each slot.
        reasons: the reasons of slots that were given up.
        lost_by: slot to the workers whose lease of it ended without a result.
        failures: slot to the workers on which its episode failed, and the results.
    """

    number: int
    evaluation: bool
    task: Any
    size: int
    admitted_at: int
    waiting: deque[int] = field(default_factory=deque)
    results: dict[int, Any] = field(default_factory=dict)
    attempts: Counter[int] = field(default_factory=Counter)
    reasons: dict[int, str] = field(default_factory=dict)
    lost_by: dict[int, set[str]] = field(default_factory=dict)
    failures: dict[int, list[tuple[str, Any]]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return len(self.results) == self.size

    def failed_on(self, slot: int) -> set[str]:
        """The workers on which a slot's episode failed."""
        return {worker for worker, _ in self.failures.get(slot, ())}

    def ended(self, batches: int) -> FinishedGroup:
        """The finished group after so many trained batches."""
        results = tuple(self.results[slot] for slot in range(self.size))
        failed = {slot: [result for _, result in pairs] for slot, pairs in self.failures.items()}
        failures = {
            slot: tuple(attempts[:-1] if results[slot] is attempts[-1] else attempts)
            for slot, attempts in failed.items()
        }
        age = batches - self.admitted_at
        return FinishedGroup(self.number, self.task, self.size, results, dict(self.reasons), age, failures)


class WaitingSlots:
    """The slots that wait for a worker, those of the oldest groups first; groups without one are not looked at."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}
        self._order: list[int] = []  # their numbers, sorted

    def add(self, group: Group, slots: Iterable[int]) -> None:
        """These slots of a group wait."""
        group.waiting.extend(slots)
        if group.waiting and group.number not in self._groups:
            self._groups[group.number] = group
            insort(self._order, group.number)

    def __len__(self) -> int:
        return sum(len(group.waiting) for group in self._groups.values())

    def first(self, wanted: Callable[[Group, int], bool]) -> tuple[Group, int] | None:
        """The first slot that is wanted; None if there is none."""
        for number in self._order:
            group = self._groups[number]
            for slot in group.waiting:
                if wanted(group, slot):
                    return group, slot
        return None

    def remove(self, group: Group, slot: int) -> None:
        """A slot waits no more."""
        group.waiting.remove(slot)
        if not group.waiting:
            del self._groups[group.number]
            del self._order[bisect_left(self._order, group.number)]


@dataclass(slots=True)
class ActiveLease:
    """A lease that has not ended.

    Args:
        group: the group of its slot.
        slot: index in the group.
        worker: that has it.
        deadline: at which it ends unless it is renewed.
        started: when it began; both in the queue's monotonic seconds.
    """

    group: Group
    slot: int
    worker: str
    deadline: float
    started: float


class ActiveLeases:
    """Leases by ticket. Those that have expired are found without a look at the others.

    ``_due`` is a heap of (deadline, ticket), one entry per lease. A renewal leaves it as it is: an entry that comes up
    is put back with the lease's own deadline, at most once per lease and lease time.
    """

    def __init__(self) -> None:
        self._by_ticket: dict[str, ActiveLease] = {}
        self._due: list[tuple[float, str]] = []
        self.held: Counter[str] = Counter()  #: by worker

    def __len__(self) -> int:
        return len(self._by_ticket)

    def __iter__(self) -> Iterator[ActiveLease]:
        return iter(self._by_ticket.values())

    def items(self) -> ItemsView[str, ActiveLease]:
        """Tickets and leases."""
        return self._by_ticket.items()

    def get(self, ticket: str) -> ActiveLease | None:
        """The lease; None if it has ended."""
        return self._by_ticket.get(ticket)

    def add(self, ticket: str, lease: ActiveLease) -> None:
        """Adds a lease."""
        self._by_ticket[ticket] = lease
        self.held[lease.worker] += 1
        heapq.heappush(self._due, (lease.deadline, ticket))

    def pop(self, ticket: str) -> ActiveLease:
        """Removes and returns a lease."""
        lease = self._by_ticket.pop(ticket)
        self.held[lease.worker] -= 1
        if not self.held[lease.worker]:
            del self.held[lease.worker]
        return lease

    def of(self, worker: str) -> list[str]:
        """The tickets of a worker."""
        return [ticket for ticket, lease in self._by_ticket.items() if lease.worker == worker]

    def describe(self, now: float) -> list[dict[str, Any]]:
        """What every lease waits for, as JSON values."""
        return [
            {
                "worker": lease.worker,
                "evaluation" if lease.group.evaluation else "group": lease.group.number,
                "slot": lease.slot,
                "seconds": round(now - lease.started, 3),
            }
            for lease in self
        ]

    def expired(self, now: float) -> list[tuple[str, ActiveLease]]:
        """The leases whose deadline has passed, the earliest first; each is returned once."""
        leases = []
        while self._due and self._due[0][0] <= now:
            _, ticket = heapq.heappop(self._due)
            lease = self._by_ticket.get(ticket)
            if lease is None:
                continue
            if lease.deadline <= now:
                leases.append((ticket, lease))
            else:
                heapq.heappush(self._due, (lease.deadline, ticket))
        return leases


class KnownWorkers:
    """The workers that were heard of lately, and the most desktops that each has had.

    Args:
        silence: seconds after which a worker that was not heard of is forgotten.
    """

    def __init__(self, silence: float) -> None:
        self._silence = silence
        self._heard: dict[str, float] = {}
        self._had: Counter[str] = Counter()
        self.desktops = 0  #: of all workers

    def record_heartbeat(self, worker: str, now: float, desktops: int = 0) -> None:
        """A worker is there.

        Args:
            worker: its name.
            now: monotonic seconds.
            desktops: those that play and those that wait, as far as is known.
        """
        self._heard[worker] = now
        more = max(0, desktops - self._had[worker])
        self._had[worker] += more
        self.desktops += more

    def resize(self, worker: str, desktops: int) -> None:
        """A worker has closed desktops, or made them again."""
        if worker in self._heard:
            self.desktops += desktops - self._had[worker]
            self._had[worker] = desktops

    def sizes(self) -> dict[str, int]:
        """The desktops of each."""
        return {worker: self._had[worker] for worker in self._heard}

    def forget(self, worker: str) -> None:
        """A worker has exited."""
        self._heard.pop(worker, None)
        self.desktops -= self._had.pop(worker, 0)

    def forget_silent(self, now: float) -> None:
        """Forgets the workers that were not heard of."""
        for worker in [worker for worker, heard in self._heard.items() if now - heard > self._silence]:
            self.forget(worker)

    def other_than(self, workers: Set[str], now: float) -> bool:
        """Whether a worker was heard of that is none of these."""
        return any(now - heard <= self._silence and worker not in workers for worker, heard in self._heard.items())
