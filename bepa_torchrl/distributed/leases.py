"""What the queue gives to workers and to the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
        results: per slot the result, or None if the slot was given up.
        reasons: slot to reason, for slots that were given up.
        age: batches that were trained between the group's admission and now.
    """

    group: int
    task: Any
    results: tuple[Any, ...]
    reasons: Mapping[int, str]
    age: int
