"""Lock-step against asynchronous collection at several bounds of staleness: wall time, utilisation, real ages.

Real collectors, and a trainer whose update is a sleep of ``--update`` seconds. Lock-step waits for the slowest episode
of each batch, and its desktops wait for the update; the baseline is ``GroupRolloutCollector``. All runs have equal
seeds, tasks and numbers of episodes. *Desktops busy* is the share of their time that they reset, act or verify. The
last lines are the ratios.

    python -m benchmarks.async_collection --desktops 16 --staleness 0 1 2 4
    python -m benchmarks.async_collection --desktops 8    # twice as many slots in a batch as desktops

By default desktops are simulated: a call takes a lognormal time, asleep, so that two cores are enough for many of them.
``--real`` starts as many real local desktops (``osworld-gym doctor --packages``) on the tasks of the suite ``local``,
into which a lognormal number of words is typed, by which episodes differ in length. They use this machine's processors,
which one desktop can keep busy, so a batch takes as long as they allow.

    python -m benchmarks.async_collection --real --desktops 8 --updates 4 --update 10 --order admission

``--ranks 2`` measures something else: whole runs of ``bepa train`` with a random policy and simulated desktops, whose
real updates are computed by one process and by so many: synchronous ones, and asynchronous ones at each bound. The
wall time is that of the iterations after the first one, without the start.

    python -m benchmarks.async_collection --ranks 2 --staleness 1 --updates 4 --desktops 4
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from bepa_torchrl.commands.train import main as train
from bepa_torchrl.data.prompt import Response
from bepa_torchrl.policies import TransformersPolicy
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.scale.rollouts.async_collector import AsyncIteration
from bepa_torchrl.scale.rollouts.local_rollouts import local_collector
from bepa_torchrl.scale.rollouts.task_queue import Order
from bepa_torchrl.storage.json_lines import read_lines
from bepa_torchrl.testing import (
    DONE,
    LampDesktop,
    LampEnv,
    ScriptedPolicy,
    SeedKey,
    lamp_task,
    lamp_vector,
    small_checkpoint,
)
from osworld_gym.desktops.base import Desktop
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suites.desktop.local import local_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import Action
from osworld_gym.vector import DesktopVector

SIZE = (640, 368)  #: pixels of real desktops
TASKS = 20
MAX_STEPS, MAX_WORDS = 6, 15
_HEAD = f"{'':24} {'wall, s':>8} {'desktops busy':>14} {'trainer busy':>13} {'maximum age':>12} {'failed':>7}"
TYPE = "Thought: type a word\nAction: type(content='word ')"


class SlowLamp(LampDesktop):
    """A lamp desktop whose resets and steps take lognormal times, by its seed."""

    blocking = True

    def __init__(self, median: float, sigma: float) -> None:
        super().__init__()
        self._median, self._sigma = median, sigma
        self._rng = random.Random(0)

    def _wait(self) -> None:
        time.sleep(self._median * self._rng.lognormvariate(0.0, self._sigma))

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


class Typist(Learner):
    """Types as many words as :func:`words` says, and ends the episode."""

    def _response(self, key: SeedKey, step: int) -> Response:
        response = super()._response(key, step)
        return replace(response, text=TYPE if step < words(key) else DONE)


@dataclass(frozen=True)
class Measured:
    """One run: wall seconds, shares of the desktops' and the trainer's time that they were busy, and maximum age.

    ``failed``: episodes whose desktop failed in every attempt.
    """

    wall: float
    busy: float
    age: int
    update: float
    failed: int


def steps(key: SeedKey) -> int:
    """Additional steps of an episode on a simulated desktop."""
    return random.Random(repr(key)).randrange(4)


def words(key: SeedKey) -> int:
    """Words of an episode on a real desktop: lognormal, with median 4, at most :data:`MAX_WORDS`."""
    return min(MAX_WORDS, round(4 * random.Random(repr(key)).lognormvariate(0.0, 0.8)))


@dataclass(frozen=True)
class Scene:
    """What is played: makes a desktop, the tasks, makes the policy, and the limit of steps.

    With simulated desktops half of the episodes succeed, after 1 to 4 steps, determined by the seed key.
    """

    make: Callable[[], Desktop]
    tasks: Sequence[Task]
    policy: Callable[[], Learner]
    max_steps: int

    @classmethod
    def of(cls, options: argparse.Namespace) -> Scene:
        """That of the command line."""
        if options.real:
            make = partial(LocalDesktop, *SIZE, template=None)
            return cls(make, local_suite().tasks, lambda: Typist(lambda _: True), MAX_WORDS + 1)
        slow = partial(SlowLamp, options.median, options.sigma)
        tasks = [lamp_task(number) for number in range(TASKS)]
        return cls(slow, tasks, lambda: Learner(lambda key: sum(key) % 2 == 0, detour=steps), MAX_STEPS)


def measure(options: argparse.Namespace, order: str | None, staleness: int) -> Measured:
    """Collects ``--updates`` batches; ``order`` None: lock-step."""
    scene, vectors = Scene.of(options), list[DesktopVector]()

    def vector(num: int) -> DesktopVector:
        vectors.append(DesktopVector(scene.make, num, EpisodeOptions(max_steps=scene.max_steps)))
        return vectors[-1]

    learner: Any = scene.policy()
    groups = {"groups": options.groups, "group_size": options.group_size, "seed": 0}
    start = time.perf_counter()
    if order is None:
        collector = GroupRolloutCollector(LampEnv(vector(options.desktops)), learner, scene.tasks, **groups)
    else:
        collector = local_collector(
            LampEnv(lamp_vector(1)),
            learner,
            scene.tasks,
            sampler=scene.policy(),
            make_vector=lambda: vector(1),
            desktops=options.desktops,
            max_rows=64,
            max_staleness=staleness,
            order=order,
            **groups,
        )
    ages, failed = [0], 0
    for _ in islice(collector, options.updates):
        if isinstance(collector.last, AsyncIteration):
            ages += collector.last.ages
        failed += sum(result.failure is not None for result in collector.last.results)
        time.sleep(options.update)
        learner.version += 1
    wall = time.perf_counter() - start
    busy = sum(each.busy_seconds for each in vectors) / (options.desktops * wall)
    collector.shutdown()
    return Measured(wall, busy, max(ages), options.updates * options.update / wall, failed)


def measure_ranks(options: argparse.Namespace, ranks: int, staleness: int | None, folder: Path) -> Measured:
    """A run with real updates, divided over so many ranks; None: synchronous. The checkpoint is in the folder."""
    name = f"ranks-{ranks}-{'synchronous' if staleness is None else f'staleness-{staleness}'}"
    mode = {"collect.mode": "sync"} if staleness is None else _asynchronous(staleness)
    settings = {
        "experiment": "smoke",
        "algo": "level2",
        "compare": "[]",
        "policy.checkpoint": folder / "policy",
        "env.desktops": options.desktops,
        **mode,
        "collect.groups": options.groups,
        "collect.group_size": options.group_size,
        "env.train_limit": max(4, options.groups),
        "train.iterations": options.updates + 1,
        "train.ranks": ranks,
        "train.save_every": options.updates + 1,
        "eval.every": 0,
        "eval.final_episodes": 0,
        "record.every": 0,
        "runs": folder,
        "name": name,
    }
    if train([f"{key}={value}" for key, value in settings.items()]) != 0:
        raise RuntimeError(f"{name} failed, see its output")
    lines = [line for line in read_lines(folder / name / "level2" / "iterations.jsonl") if line["phase"] == "rl"][1:]
    updates = sum(line["seconds_train"] for line in lines)
    wall = updates + sum(line["seconds_collect"] for line in lines)
    busy = sum(line["collect/busy_seconds"] for line in lines)
    there = sum(line.get("collect/desktop_seconds", options.desktops * line["seconds_collect"]) for line in lines)
    failed = sum(value for line in lines for key, value in line.items() if key.startswith("collect/failed_"))
    age = max(line.get("collect/staleness_max", 0) for line in lines)
    return Measured(wall, busy / max(there, 1e-9), int(age), updates / wall, int(failed))


def _asynchronous(staleness: int) -> dict[str, Any]:
    return {"collect.mode": "async", "collect.max_staleness": staleness}


def compare_ranks(options: argparse.Namespace) -> None:
    """Prints the runs of one process and of several, and their ratios to one rank and to the synchronous run of one."""
    rows: dict[tuple[int | None, int], Measured] = {}
    with tempfile.TemporaryDirectory() as name:
        TransformersPolicy(small_checkpoint(), preset="compact").save(Path(name) / "policy")
        for staleness in (None, *options.staleness):
            for ranks in (1, *options.ranks):
                rows[staleness, ranks] = measure_ranks(options, ranks, staleness, Path(name))
    print(_HEAD)
    labels = {
        (staleness, ranks): (
            "synchronous" if staleness is None else f"staleness {staleness}",
            f"{ranks} rank{'s' * (ranks > 1)}",
        )
        for staleness, ranks in rows
    }
    for key, found in rows.items():
        mode, count = labels[key]
        print(_row(f"{count}, {mode}", found))
    for (staleness, ranks), found in rows.items():
        mode, count = labels[staleness, ranks]
        one, first = rows[staleness, 1].wall / found.wall, rows[None, 1].wall / found.wall
        print(f"{mode}, {count}: {one:.2f}x one rank, {first:.2f}x one rank that is synchronous (wall time)")
    print(_load())


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
    parser.add_argument("--order", nargs="+", choices=get_args(Order), default=list(get_args(Order)))
    parser.add_argument("--real", action="store_true", help="real local desktops; --median and --sigma are not used")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[], help="runs with real updates, on so many ranks each"
    )
    options = parser.parse_args()
    if options.ranks:
        compare_ranks(options)
        return
    slots = options.groups * options.group_size
    print(
        f"{options.desktops} {'real' if options.real else 'simulated'} desktops, {options.updates} x {slots} episodes"
    )
    print(_HEAD)
    base = measure(options, None, 0)
    print(_row("lock-step", base), flush=True)
    lines = []
    for order in options.order:
        for staleness in options.staleness:
            found = measure(options, order, staleness)
            name = f"{order}, staleness {staleness}"
            print(_row(name, found), flush=True)
            lines.append(f"lock-step / {name}: {base.wall / found.wall:.2f}x wall time")
    print(_load())
    for line in lines:
        print(line)


def _load() -> str:
    return f"load average over the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"


def _row(name: str, found: Measured) -> str:
    shares = f"{100 * found.busy:12.0f} % {100 * found.update:11.0f} %"
    return f"{name:24} {found.wall:8.1f} {shares} {found.age:12} {found.failed:7}"


if __name__ == "__main__":
    main()
