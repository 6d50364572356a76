"""Lock-step against asynchronous collection at several bounds of staleness: wall time, utilisation, real ages.

Simulated desktops whose calls take lognormal times (asleep, so that two cores are enough for many of them), a scripted
policy, real collectors, and a trainer whose update is a sleep of ``--update`` seconds. Lock-step waits for the slowest
episode of each batch, and its desktops wait for the update; the baseline is ``GroupRolloutCollector``. All runs have
equal seeds, tasks and numbers of episodes. The last lines are the ratios.

    python -m benchmarks.async_collection --desktops 16 --staleness 0 1 2 4
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor

from bepa_torchrl.distributed.async_collector import AsyncIteration
from bepa_torchrl.distributed.local_rollouts import local_collector
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.testing import LampDesktop, LampEnv, ScriptedPolicy, SeedKey, lamp_task
from osworld_gym.episode import EpisodeOptions
from osworld_gym.types import Action
from osworld_gym.vector import DesktopVector

TASKS = 20
MAX_STEPS = 6


class Clock:
    """Seconds that desktops were busy, over all threads."""

    def __init__(self) -> None:
        self._lock, self.busy = threading.Lock(), 0.0

    def sleep(self, seconds: float) -> None:
        """Sleeps and counts."""
        time.sleep(seconds)
        with self._lock:
            self.busy += seconds


class SlowLamp(LampDesktop):
    """A lamp desktop whose resets and steps take lognormal times, by its seed."""

    blocking = True

    def __init__(self, clock: Clock, median: float, sigma: float) -> None:
        super().__init__()
        self._clock, self._median, self._sigma = clock, median, sigma
        self._rng = random.Random(0)

    def _wait(self) -> None:
        self._clock.sleep(self._median * self._rng.lognormvariate(0.0, self._sigma))

    def reset(self, seed: int) -> None:
        """Resets after a wait."""
        super().reset(seed)
        self._rng = random.Random(seed)
        self._wait()

    def perform(self, actions: Sequence[Action]) -> None:
        """Acts after a wait."""
        super().perform(actions)
        self._wait()


class Learner(ScriptedPolicy):
    """The trainer's policy: no weights to publish."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Nothing."""
        return iter(())


@dataclass(frozen=True)
class Measured:
    """One run: wall seconds, share of the desktops' time that they were busy, maximum age, and the updates' share."""

    wall: float
    busy: float
    age: int
    update: float


def policy() -> Learner:
    """Half of the episodes succeed, after 1 to 4 steps, determined by the seed key."""
    return Learner(lambda key: sum(key) % 2 == 0, detour=steps)


def steps(key: SeedKey) -> int:
    """Additional steps of an episode."""
    return random.Random(repr(key)).randrange(4)


def measure(options: argparse.Namespace, order: str | None, staleness: int) -> Measured:
    """Collects ``--updates`` batches; ``order`` None: lock-step."""
    clock = Clock()

    def make() -> SlowLamp:
        return SlowLamp(clock, options.median, options.sigma)

    def vector(num: int) -> DesktopVector:
        return DesktopVector(make, num, EpisodeOptions(max_steps=MAX_STEPS))

    learner: Any = policy()
    tasks = [lamp_task(number) for number in range(TASKS)]
    groups = {"groups": options.groups, "group_size": options.group_size, "seed": 0}
    if order is None:
        collector = GroupRolloutCollector(LampEnv(vector(options.desktops)), learner, tasks, **groups)
    else:
        collector = local_collector(
            LampEnv(vector(1)),
            learner,
            tasks,
            sampler=policy(),
            make_vector=lambda: vector(1),
            desktops=options.desktops,
            max_rows=64,
            max_staleness=staleness,
            order=order,
            **groups,
        )
    ages = [0]
    start = time.perf_counter()
    for _ in islice(collector, options.updates):
        if isinstance(collector.last, AsyncIteration):
            ages += collector.last.ages
        time.sleep(options.update)
        learner.version += 1
    wall = time.perf_counter() - start
    busy = clock.busy / (options.desktops * wall)
    collector.shutdown()
    return Measured(wall, busy, max(ages), options.updates * options.update / wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--desktops", type=int, default=16)
    parser.add_argument("--groups", type=int, default=4, help="groups per update")
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--update", type=float, default=0.35, help="seconds of an update")
    parser.add_argument("--median", type=float, default=0.06, help="median seconds of a call")
    parser.add_argument("--sigma", type=float, default=1.1, help="standard deviation of the logarithm of a call's time")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4])
    options = parser.parse_args()
    base = measure(options, None, 0)
    print(f"{'':24} {'wall, s':>8} {'desktops busy':>14} {'trainer busy':>13} {'maximum age':>12}")
    print(_row("lock-step", base))
    lines = []
    for order in ("admission", "completion"):
        for staleness in options.staleness:
            found = measure(options, order, staleness)
            name = f"{order}, staleness {staleness}"
            print(_row(name, found))
            lines.append(f"lock-step / {name}: {base.wall / found.wall:.2f}x wall time")
    for line in lines:
        print(line)


def _row(name: str, found: Measured) -> str:
    shares = f"{100 * found.busy:12.0f} % {100 * found.update:11.0f} %"
    return f"{name:24} {found.wall:8.1f} {shares} {found.age:12}"


if __name__ == "__main__":
    main()
