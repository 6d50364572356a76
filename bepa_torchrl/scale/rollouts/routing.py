"""Which rollout service answers an episode's next turn: the one that has its prefix, unless others are far less loaded.

An engine keeps keys and values of the turns that it has answered. A turn that another engine answers is computed from
its first token, so that an episode stays where it is while its engine's load allows it. Every worker decides for its
own episodes, by what the services report and by what it has sent them itself: there is no further process that could
fail, and a report that is a second old only makes the loads less equal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from bepa_torchrl.data.prompt import Prompt, Response
from bepa_torchrl.scale.engine.errors import EngineError
from bepa_torchrl.scale.rollouts.rollout_service import RolloutClient
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.types import PromptContext

_log = logging.getLogger(__name__)
T = TypeVar("T")
SLACK = 8  #: requests: what an episode that moves computes again is on average as much as so many turns of others add
REPORT_SECONDS = 1.0  #: between two reports of a service, while turns are asked for
LATE_SECONDS = 10.0  #: after which a service that has not reported counts as away
WAIT_SECONDS = 600.0  #: that a turn waits if all services are away, unless another time is given


def choose(loads: Sequence[int | None], *, home: int | None, preferred: int, slack: int) -> int | None:
    """The service for a turn.

    Args:
        loads: requests that each service has; None: it answers none at present.
        home: the service of the episode's turns so far; None: this is its first.
        preferred: the service of the group's first prompt, if it is there; else the next one that is.
        slack: requests by which the service may be loaded beyond the least loaded one.

    Returns:
        ``home`` or else the preferred service, the first whose load allows it; or the least loaded, of equal ones the
        first from the preferred one on. None: no service is there.
    """
    ring = [number % len(loads) for number in range(preferred, preferred + len(loads))]
    there = [(number, load) for number in ring if (load := loads[number]) is not None]
    if not there:
        return None
    least, least_load = min(there, key=lambda each: each[1])
    load = None if home is None else loads[home]
    if load is not None and load <= least_load + slack:
        return home
    first, first_load = there[0]
    return first if first_load <= least_load + slack else least


def routing_metrics(answered: Sequence[int], moved: int) -> dict[str, float]:
    """How turns were spread; empty with one service.

    Args:
        answered: turns that each service has answered.
        moved: turns that another service answered than the episode's turn before.
    """
    if len(answered) < 2:
        return {}
    return {
        "engine/turns_of_least": float(min(answered)),
        "engine/turns_of_most": float(max(answered)),
        "engine/turns_moved": float(moved),
    }


class Service(NamedTuple):
    """How a worker reaches one rollout service.

    Args:
        client: raises DesktopError with ``died`` at once if the service exits.
        requests: asks for what :meth:`.rollout_service.RolloutService.requests` returns, without waiting.
    """

    client: RolloutClient
    requests: Callable[[], Future[int | None]]


@dataclass(slots=True)
class _Load:
    """What a worker knows of a service's requests.

    Args:
        own: those of this worker, now.
        others: those of other workers, by the last report.
        there: whether it answers requests.
        report: the report that was asked for; None: none is under way.
        asked: when that was; monotonic seconds.
        own_asked: ``own`` at that time.
    """

    own: int = 0
    others: int = 0
    there: bool = True
    report: Future[int | None] | None = None
    asked: float = float("-inf")
    own_asked: int = 0

    def take(self) -> None:
        """Reads the report, if it has come."""
        if self.report is None or not self.report.done():
            return
        try:
            requests = self.report.result()
        except Exception as error:  # noqa: BLE001  whatever it is, the service cannot be counted on
            _log.debug("no report of a rollout service: %s", error)
            requests = None
        self.report, self.there = None, requests is not None
        self.others = max(0, (requests or 0) - self.own_asked)


class ServiceRouter:
    """Rollout services of which each answers some of a worker's episodes. Threads of all episodes may call it.

    Args:
        services: at least one.
        slack: as of :func:`choose`.
        seconds: that a turn waits for a service if all are away, for example since they are started again.
        clock: monotonic seconds.
        pause: waits so many seconds.
    """

    def __init__(
        self,
        services: Sequence[Service],
        *,
        slack: int = SLACK,
        seconds: float = WAIT_SECONDS,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        if not services:
            raise ValueError("expected at least one rollout service, got none")
        self.services, self._slack, self._seconds = services, slack, seconds
        self._clock, self._pause = clock, pause
        self._lock = threading.Lock()
        self._loads = [_Load() for _ in services]
        self.moved = 0  #: turns that another service answered than the episode's turn before

    def episode(self, group: int) -> RolloutClient:
        """The client of one episode of a group; groups are spread over the services by their number."""
        return _EpisodeClient(self, group)

    def place(self, group: int, home: int | None, lost: Collection[int] = ()) -> int | None:
        """The service for a turn; does not wait.

        Args:
            group: number of the episode's group.
            home: as of :func:`choose`.
            lost: services that are not asked.
        """
        with self._lock:
            loads = [None if number in lost else load for number, load in enumerate(self._look())]
            number = choose(loads, home=home, preferred=group % len(loads), slack=self._slack)
            self.moved += home is not None and number not in (None, home)
            return number

    def wait(self, group: int, home: int | None, problem: Exception | None) -> int:
        """The service for a turn, as soon as one is there.

        Args:
            group: number of the episode's group.
            home: as of :func:`choose`.
            problem: why the last one that was asked is lost, if so.

        Raises:
            DesktopError: none is there in time.
        """
        end = self._clock() + self._seconds
        while (number := self.place(group, home)) is None:
            if self._clock() >= end:
                reason = "" if problem is None else f"; the last one that was asked: {problem}"
                raise DesktopError(
                    FailureReason.died,
                    f"none of {len(self.services)} rollout services has answered for {self._seconds:g} s{reason}",
                )
            self._pause(REPORT_SECONDS)
        return number

    def began(self, number: int) -> None:
        """A request was sent to a service."""
        with self._lock:
            self._loads[number].own += 1

    def ended(self, number: int) -> None:
        """A request of :meth:`began` has ended."""
        with self._lock:
            self._loads[number].own -= 1

    def lost(self, number: int) -> None:
        """A service has exited or failed; it is not asked until it reports that it answers requests."""
        with self._lock:
            load = self._loads[number]
            load.there, load.report, load.asked = False, None, self._clock()

    def _look(self) -> list[int | None]:
        """The loads, by the reports that have come; asks for further ones."""
        now = self._clock()
        for service, load in zip(self.services, self._loads, strict=True):
            load.take()
            if load.report is None and now - load.asked >= REPORT_SECONDS:
                load.report, load.asked, load.own_asked = service.requests(), now, load.own
            elif load.report is not None and now - load.asked > LATE_SECONDS:
                load.there = False
        return [load.own + load.others if load.there else None for load in self._loads]


class _EpisodeClient:
    """A :class:`.rollout_service.RolloutClient` of one episode: a turn is rendered and sampled by one service."""

    def __init__(self, router: ServiceRouter, group: int) -> None:
        self._router, self._group = router, group
        self._home: int | None = None
        self._lost = set[int]()  #: in this turn

    def render(self, contexts: Sequence[PromptContext]) -> list[Prompt | None]:
        self._lost.clear()
        self._move(None)
        return self._ask(lambda client: client.render(contexts))

    def sample(
        self, prompts: Sequence[Prompt], keys: Sequence[tuple[int, ...]], temperature: float
    ) -> tuple[list[Response], int]:
        return self._ask(lambda client: client.sample(prompts, keys, temperature))

    def _move(self, problem: Exception | None) -> int:
        """The service to ask next: one that was not lost in this turn; if there is none, the first that is back."""
        number = self._router.place(self._group, self._home, self._lost)
        if number is None:
            self._lost.clear()
            number = self._router.wait(self._group, self._home, problem)
        self._home = number
        return number

    def _ask(self, call: Callable[[RolloutClient], T]) -> T:
        """The answer of the episode's service, or of others if it exits. Raises as they do, or :meth:`_move`."""
        number = self._move(None) if self._home is None else self._home
        while True:
            try:
                with self._busy(number):
                    return call(self._router.services[number].client)
            except DesktopError as error:
                if error.reason is not FailureReason.died:
                    raise
                reason: Exception = error
            except EngineError as error:
                reason = error
            services = len(self._router.services)
            _log.warning("rollout service %d of %d is lost, others are asked: %s", number, services, reason)
            self._router.lost(number)
            self._lost.add(number)
            number = self._move(reason)

    @contextmanager
    def _busy(self, number: int) -> Iterator[None]:
        self._router.began(number)
        try:
            yield
        finally:
            self._router.ended(number)
