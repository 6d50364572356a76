"""Prompt tokens that engines compute again, and how equally they are loaded, by who answers an episode's next turn.

A simulation in its own time, with the router of the workers (``bepa_torchrl.scale.rollouts.routing``): ``--engines``
engines, the first ``--slow`` times slower than the others, ``--workers`` workers with unequal numbers of desktops, and
groups of eight episodes of up to ``--turns`` turns. Turn t has t screenshots of ``--tokens`` tokens; an engine computes
what its cache (``--cache`` tokens, the longest unused dropped first) has not of the episode, or of the group's first
prompt, one prompt after another, then samples for a fixed time beside others. ``fixed``: worker i has engine i mod n,
as before there was a choice; ``random``: each turn anywhere; ``loaded``: each turn at the least loaded engine
(``cluster.replica_slack=0``); ``affinity``: as a run does. Workers' reports of the load are up to a second old.

    python -m benchmarks.routing --engines 4 --slow 3
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from bepa_torchrl.scale.rollouts.routing import SLACK, Service, ServiceRouter

Routing: TypeAlias = Literal["fixed", "random", "loaded", "affinity"]
ROUTINGS: tuple[Routing, ...] = ("fixed", "random", "loaded", "affinity")
PREFILL, SAMPLING, DESKTOP = 20_000.0, 4.0, 3.0  #: tokens/s; seconds per response; seconds per step, 0.5 to 1.5 times
GROUP = 8  #: episodes


class Load(NamedTuple):
    """What is simulated.

    Args:
        engines: number of engines, of which the first is ``slow`` times slower.
        slow: 1: all are equal.
        desktops: of each worker.
        groups: of eight episodes.
        turns: of the longest episode; each has from half as many to as many.
        tokens: per screenshot.
        cache: tokens that an engine keeps.
        seed: of the lengths and times.
    """

    engines: int = 4
    slow: float = 1.0
    desktops: tuple[int, ...] = (16, 16, 8, 8, 8, 8)
    groups: int = 32
    turns: int = 15
    tokens: int = 2_800
    cache: int = 1_200_000
    seed: int = 0


class Figures(NamedTuple):
    """What a simulation found.

    Args:
        recomputed: mean prompt tokens of an episode that an engine computed although one had computed them before.
        seconds: until the last episode ended.
        turns: that each engine answered.
        moved: turns whose engine was not that of the episode's turn before.
    """

    recomputed: float
    seconds: float
    turns: tuple[int, ...]
    moved: int


@dataclass(slots=True)
class Engine:
    """An engine that computes prompts one after another; ``busy_until`` is when the last one is computed."""

    slowness: float
    cache: int
    requests: int = 0
    turns: int = 0
    busy_until: float = 0.0
    kept: OrderedDict[Any, int] = field(default_factory=OrderedDict)  #: episode, or group → tokens of its prefix
    size: int = 0  #: tokens of all

    def answer(self, now: float, group: int, episode: int, tokens: int, first: int) -> tuple[float, int]:
        """When a turn is answered, and how many tokens of its prompt are computed."""
        names = ("episode", episode), ("group", group)
        have = max(self.kept.get(names[0], 0), min(first, self.kept.get(names[1], 0)))
        for name, kept in zip(names, (tokens, first), strict=True):
            self.size += kept - self.kept.pop(name, 0)
            self.kept[name] = kept
        while self.size > self.cache and len(self.kept) > 1:
            self.size -= self.kept.popitem(last=False)[1]
        self.busy_until = max(now, self.busy_until) + self.slowness * (tokens - have) / PREFILL
        return self.busy_until + self.slowness * SAMPLING, tokens - have


@dataclass(slots=True)
class Episode:
    """An episode that is played at a desktop of a worker."""

    number: int
    worker: int
    turns: int
    turn: int = 0
    home: int | None = None

    @property
    def group(self) -> int:
        return self.number // GROUP


class Simulation:
    """Plays all groups with one kind of routing; see the module's text."""

    def __init__(self, load: Load, routing: Routing) -> None:
        self.load, self.now = load, 0.0
        self.random = random.Random(load.seed)
        self.lengths = [self.random.randint(load.turns // 2, load.turns) for _ in range(load.groups * GROUP)]
        self.engines = [Engine(load.slow if not n else 1.0, load.cache) for n in range(load.engines)]
        clock = lambda: self.now  # noqa: E731
        services: list[Any] = [Service(None, partial(self._report, n)) for n in range(load.engines)]  # type: ignore[arg-type]
        slack = 0 if routing == "loaded" else SLACK
        self.routers = [ServiceRouter(services, slack=slack, clock=clock) for _ in load.desktops]
        self.routing = routing
        self.computed = self.needed = self.moved = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def run(self) -> Figures:
        self._left: Iterator[int] = iter(range(len(self.lengths)))
        desktops = [worker for worker, count in enumerate(self.load.desktops) for _ in range(count)]
        self.random.shuffle(desktops)
        for worker in desktops:
            self._at(self.random.uniform(0, DESKTOP), partial(self._start, worker))
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()
        turns = tuple(engine.turns for engine in self.engines)
        return Figures((self.computed - self.needed) / len(self.lengths), self.now, turns, self.moved)

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _report(self, engine: int) -> Future[int | None]:
        report: Future[int | None] = Future()
        report.set_result(self.engines[engine].requests)
        return report

    def _start(self, worker: int) -> None:
        number = next(self._left, None)
        if number is not None:
            self._turn(Episode(number, worker, self.lengths[number]))

    def _place(self, episode: Episode) -> int:
        if self.routing == "fixed":
            return episode.worker % self.load.engines
        if self.routing == "random":
            return self.random.randrange(self.load.engines)
        home = None if self.routing == "loaded" else episode.home
        place = self.routers[episode.worker].place(episode.group, home)
        assert place is not None
        return place

    def _turn(self, episode: Episode) -> None:
        number = self._place(episode)
        engine, router = self.engines[number], self.routers[episode.worker]
        self.moved += episode.home not in (None, number)
        episode.home = number
        episode.turn += 1
        tokens, first = episode.turn * self.load.tokens, self.load.tokens
        new = first if episode.turn > 1 or episode.number % GROUP == 0 else 0  # of a group's first prompt: once
        end, computed = engine.answer(self.now, episode.group, episode.number, tokens, first)
        self.computed += computed
        self.needed += new
        engine.requests += 1
        engine.turns += 1
        router.began(number)
        self._at(end - self.now, partial(self._answered, episode, number))

    def _answered(self, episode: Episode, number: int) -> None:
        self.engines[number].requests -= 1
        self.routers[episode.worker].ended(number)
        step = DESKTOP * self.random.uniform(0.5, 1.5)
        over = episode.turn == episode.turns
        self._at(step, partial(self._start, episode.worker) if over else partial(self._turn, episode))


def simulate(load: Load, routing: Routing) -> Figures:
    """The figures of one kind of routing."""
    return Simulation(load, routing).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in Load._field_defaults.items():
        if name != "desktops":
            parser.add_argument(f"--{name}", type=type(value), default=value)
    load = Load(**vars(parser.parse_args()))
    found = {routing: simulate(load, routing) for routing in ROUTINGS}
    best = found["affinity"]
    print(f"{load.groups * GROUP} episodes, {sum(load.desktops)} desktops; ratios against affinity")
    for routing, figures in found.items():
        tokens, ratio = figures.recomputed / 1000, figures.recomputed / max(1.0, best.recomputed)
        time = f"{figures.seconds:7.0f} s ({figures.seconds / best.seconds:.2f})"
        print(f"{routing:9} {tokens:6.1f}k tokens computed again per episode ({ratio:.2f}), {time}, ", end="")
        print(f"turns {figures.turns}, {figures.moved} moved")


if __name__ == "__main__":
    main()
