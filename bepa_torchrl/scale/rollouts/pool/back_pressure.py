"""Back-pressure: how many desktops a pool keeps, by what the trainer takes.

If the trainer never waits, finished groups wait for it, and more desktops only make them wait longer: what is enough is
the mean number that played, and some in addition. If it waits now and then, only desktops that never played at the same
time as the others are of no use. As soon as it waits while slots wait for a desktop, there are too few.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import NamedTuple

from bepa_torchrl.scale.rollouts.queue_state import DesktopDemand

_log = logging.getLogger(__name__)
SHRINK_SECONDS = 300.0
_HEADROOM = 1.25  #: desktops over the mean number that played: episodes are not equally long
_RARELY = 0.05  #: share of the time that the trainer may wait for a group, and finished groups are said to wait for it


class Sample(NamedTuple):
    """The demand at a time, in monotonic seconds."""

    at: float
    demand: DesktopDemand


def desktops_wanted(samples: Sequence[Sample], now: int, most: int, *, may_shrink: bool) -> int:
    """How many desktops a pool should have.

    Args:
        samples: the samples of the last while, the oldest first, at least one.
        now: that it has.
        most: that it can have, ``now`` or more.
        may_shrink: whether ``samples`` are over the whole time after which desktops without use are closed.

    Returns:
        From 1 to ``most``. More than ``now``, at once: slots wait for a desktop, and the trainer waited for more than
        half of the time between the last two samples, or before them nothing was played at all.
    """
    last = samples[-1].demand
    if last.waiting and len(samples) > 1 and now < most:
        before, first = samples[-2], samples[0]
        held_up = last.held_up_seconds - before.demand.held_up_seconds > (samples[-1].at - before.at) / 2
        nothing_played = before is not first and before.demand.busy_seconds == first.demand.busy_seconds
        if held_up or nothing_played:
            return max(now, min(most, last.playing + last.waiting))
    if not may_shrink:
        return now
    seconds = samples[-1].at - samples[0].at
    if last.held_up_seconds - samples[0].demand.held_up_seconds > _RARELY * seconds:
        enough = max(sample.demand.playing + sample.demand.waiting for sample in samples)
    else:
        enough = ceil(_HEADROOM * (last.busy_seconds - samples[0].demand.busy_seconds) / seconds)
    return max(1, min(now, enough))


def shares(total: int, most: Mapping[str, int]) -> dict[str, int]:
    """Divides desktops among workers in proportion to what each can have, at least one each."""
    room = {name: number - 1 for name, number in most.items()}
    extra, all_room = max(0, total - len(most)), max(1, sum(room.values()))
    desktops = {name: 1 + min(number, extra * number // all_room) for name, number in room.items()}
    left = min(total, sum(most.values())) - sum(desktops.values())
    for name in sorted(room, key=lambda each: (desktops[each] - most[each], each)):
        if left > 0 and desktops[name] < most[name]:
            desktops[name] += 1
            left -= 1
    return desktops


class PoolSize:
    """The number of desktops of a pool, from one sample of the demand to the next.

    Args:
        shrink_after: seconds without use after which desktops are closed, and between two times that some are.
        clock: monotonic seconds.
    """

    def __init__(self, shrink_after: float, *, clock: Callable[[], float] = monotonic) -> None:
        self._shrink_after, self._clock = shrink_after, clock
        self._samples: deque[Sample] = deque()
        self._changed = clock()
        self._size: int | None = None  #: None: all

    def update(self, demand: DesktopDemand, most: Mapping[str, int]) -> dict[str, int]:
        """Adds a sample; returns how many desktops each worker should have.

        Args:
            demand: the queue's, now.
            most: the desktops that each worker can have.
        """
        now, total = self._clock(), sum(most.values())
        self._samples.append(Sample(now, demand))
        while len(self._samples) > 2 and now - self._samples[1].at >= self._shrink_after:
            self._samples.popleft()
        size = total if self._size is None else min(total, max(self._size, len(most)))
        whole = now - max(self._samples[0].at, self._changed) >= self._shrink_after
        wanted = max(len(most), desktops_wanted(self._samples, size, total, may_shrink=whole)) if most else 0
        if wanted != size:
            _log.info("desktops of the pool: %d of %d, instead of %d; demand: %s", wanted, total, size, demand)
            self._changed = now
        self._size = wanted if wanted < total else None
        return shares(wanted, most)
