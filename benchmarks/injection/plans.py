"""Fault plans: which attempt at which episode gets which fault, and when; drawn from a seed before the run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle

from osworld_gym.errors import FailureReason

DELAYS = (0.01, 0.15)  # seconds after the start of a call, for a fault during it


class Kind(StrEnum):
    """Kinds of injected faults."""

    guest_killed = "guest killed"
    x_killed = "X server killed"
    guest_frozen = "guest frozen"
    disk_full = "disk full"
    evaluator_raises = "evaluator raises"
    evaluator_hangs = "evaluator hangs"


_ANY = frozenset({FailureReason.died, FailureReason.setup_failed, FailureReason.bad_screenshot, FailureReason.hung})
#: kind → failure reasons that it can cause
REASONS: dict[Kind, frozenset[FailureReason]] = {
    Kind.guest_killed: frozenset({FailureReason.died, FailureReason.setup_failed}),
    Kind.x_killed: _ANY,
    # the deadline of the call, or of the metric
    Kind.guest_frozen: frozenset({FailureReason.hung, FailureReason.evaluator_failed}),
    Kind.disk_full: _ANY,
    Kind.evaluator_raises: frozenset({FailureReason.evaluator_failed}),
    Kind.evaluator_hangs: frozenset({FailureReason.evaluator_failed}),
}
EVALUATOR = (Kind.evaluator_raises, Kind.evaluator_hangs)
SIGNALS = (Kind.guest_killed, Kind.x_killed, Kind.guest_frozen)


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of an episode's calls: setup steps, and responses that act."""

    setups: int
    performs: int

    @property
    def screenshots(self) -> int:
        """Number of screenshots: one at the beginning, one after each response including ``finished``."""
        return self.performs + 2


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Args:
        kind: its kind.
        call: ``setup``, ``perform``, ``screenshot`` or ``verify``.
        number: index of that call in the episode, from 0.
        after: seconds after the start of that call (at the latest before the next call); 0: just before it.
    """

    kind: Kind
    call: str
    number: int
    after: float = 0.0


def deal(shapes: Sequence[Shape], share: float, tries: int, seed: int) -> dict[tuple[int, int], Fault]:
    """Draws the faults: (episode, attempt) → fault.

    Args:
        shapes: one per episode.
        share: fraction of episodes whose first attempt gets a fault; every kind occurs at least once.
        tries: maximum attempts per episode. Of the episodes with faults, every eighth has one in each attempt and so
            ends masked; every third has faults in two attempts.
        seed: of the random generator.

    Raises:
        ValueError: there are fewer episodes than kinds.
    """
    if len(shapes) < len(Kind):
        raise ValueError(f"{len(Kind)} kinds of faults require at least as many episodes, got {len(shapes)}")
    rng = random.Random(f"faults {seed}")
    hit = rng.sample(range(len(shapes)), min(len(shapes), max(len(Kind), round(share * len(shapes)))))
    kinds = cycle(rng.sample(list(Kind), len(Kind)))
    times = [tries if i % 8 == 0 else min(2, tries) if i % 3 == 1 else 1 for i in range(len(hit))]
    places = [(episode, 0) for episode in hit]
    places += [(episode, attempt) for episode, n in zip(hit, times, strict=True) for attempt in range(1, n)]
    return {(episode, attempt): _draw(next(kinds), shapes[episode], attempt, rng) for episode, attempt in places}


def _draw(kind: Kind, shape: Shape, attempt: int, rng: random.Random) -> Fault:
    """Draws the call at which the fault is injected.

    The X server is not killed at the verification, which needs only files. A desktop that is ended at the same step
    twice looks as if the policy had ended it, so only the first attempt's desktop is ended in a step.
    """
    if kind in EVALUATOR:
        return Fault(kind, "verify", 0)
    calls = [("setup", i) for i in range(shape.setups)] + [("screenshot", 0)]
    if attempt == 0 or kind is Kind.guest_frozen:
        calls += [("perform", i) for i in range(shape.performs)]
        calls += [("screenshot", i) for i in range(1, shape.screenshots)]
        calls += [("verify", 0)] * (2 if kind in (Kind.guest_killed, Kind.guest_frozen) else 0)
    call, number = rng.choice(calls)
    at_the_end = (call, number) in (("screenshot", shape.screenshots - 1), ("verify", 0))
    late = at_the_end or (attempt > 0 and call == "screenshot")
    amid = kind in SIGNALS and not late
    return Fault(kind, call, number, rng.uniform(*DELAYS) if amid and rng.random() < 0.5 else 0.0)
