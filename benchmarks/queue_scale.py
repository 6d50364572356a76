"""Throughput of the task queue with many desktops: episodes per second against a queue that takes no time.

The queue is a Ray actor, as in a run. Workers lease and complete slots as :class:`EnvWorker` does; their desktops are
timers: an episode takes ``--seconds`` on average and its result has ``--megabytes`` of incompressible bytes (a turn's
screenshot at 1920x1080 is 0.2 to 0.5 MB as PNG). The driver takes groups as the trainer does, and reads every result.
All workers live in a few processes, which share this machine with the queue and the driver: on a cluster only the
last two would be here. The baseline is ``desktops / seconds`` episodes per second. The last lines are the ratios.

With ``--calls`` the queue is an object of this process instead, and the CPU time of its calls is measured, with as many
active leases as there are desktops; the baseline is the same queue with 100.

    python -m benchmarks.queue_scale --desktops 1000 --workers 50 --megabytes 0 1 4
    python -m benchmarks.queue_scale --calls --desktops 10000
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import ray

from bepa_torchrl.scale.rollouts.queue_service import QueueService
from bepa_torchrl.scale.rollouts.ray_cluster import ActorClient, connect
from bepa_torchrl.scale.rollouts.ray_queue import RayQueue
from bepa_torchrl.scale.rollouts.task_queue import StaleTicketError

GROUP_SIZE, GROUPS = 8, 16
_POLL = 5.0
_FEW, _RENEWED = 100, 64


class Desktops:
    """Workers of one process, each with some simulated desktops.

    Args:
        queue: the queue's actor.
        number: of the process.
        workers: number of workers.
        desktops: per worker.
        seconds: mean time of an episode; lognormal.
        megabytes: size of a result.
    """

    def __init__(self, queue: Any, number: int, workers: int, desktops: int, seconds: float, megabytes: float) -> None:
        self._queue, self._desktops, self._seconds = ActorClient(queue), desktops, seconds
        self._result = os.urandom(int(megabytes * 1e6))
        self._rng = random.Random(number)
        self._latencies: list[float] = []
        self._threads = [
            threading.Thread(target=self._work, args=(f"{number}/{worker}",), daemon=True) for worker in range(workers)
        ]

    def start(self) -> None:
        """Starts all workers."""
        for thread in self._threads:
            thread.start()

    def latencies(self) -> list[float]:
        """Seconds of every completion so far."""
        return self._latencies

    def _work(self, name: str) -> None:
        running: list[tuple[float, str]] = []
        while True:
            idle = self._desktops - len(running)
            wait = max(0.0, running[0][0] - time.monotonic()) if running else _POLL
            leases = self._queue.lease(name, idle, min(wait, _POLL)) if idle else []
            for lease in leases:
                heapq.heappush(running, (time.monotonic() + self._draw(), lease.ticket))
            if not idle:
                time.sleep(max(0.0, running[0][0] - time.monotonic()))
            while running and running[0][0] <= time.monotonic():
                self._complete(heapq.heappop(running)[1])

    def _draw(self) -> float:
        """Lognormal with the mean ``seconds``: exp(mu + sigma^2 / 2) = 1 for mu = -sigma^2 / 2."""
        return self._seconds * self._rng.lognormvariate(-0.125, 0.5)

    def _complete(self, ticket: str) -> None:
        start = time.monotonic()
        with suppress(StaleTicketError):
            self._queue.complete(ticket, self._result)
        self._latencies.append(time.monotonic() - start)


@dataclass(frozen=True)
class Measured:
    """One run: episodes per second, and the seconds of a completion (median, 99th percentile)."""

    rate: float
    median: float
    p99: float


def measure(options: argparse.Namespace, megabytes: float) -> Measured:
    """Takes groups for ``--measure`` seconds, after each desktop has had time for an episode.

    In order of completion: in order of admission the groups behind the slowest of a thousand episodes would be missing.
    """
    staleness = -(-2 * options.desktops // (GROUPS * GROUP_SIZE))  # there is always a slot that waits
    queue = RayQueue(batch_groups=GROUPS, max_staleness=staleness, order="completion", lease_seconds=600.0)
    share = options.workers // options.processes
    processes = [
        ray.remote(Desktops)
        .options(num_cpus=0)
        .remote(queue.actor, number, share, options.desktops // options.workers, options.seconds, megabytes)
        for number in range(options.processes)
    ]
    ray.get([process.start.remote() for process in processes], timeout=300.0)
    begin = time.monotonic() + 3 * options.seconds
    end, taken, episodes = begin + options.measure, 0, 0
    while time.monotonic() < end:
        for _ in range(queue.capacity_left()):
            queue.admit([0, 0], GROUP_SIZE)
        group = queue.next_group(_POLL)
        if group is None:
            continue
        assert all(len(result) == int(megabytes * 1e6) for result in group.results)
        queue.take(group.group)
        taken += 1
        if taken % GROUPS == 0:
            queue.trained()
        episodes += GROUP_SIZE * (time.monotonic() >= begin)
    found = [seconds for process in processes for seconds in ray.get(process.latencies.remote(), timeout=60.0)]
    for process in processes:
        ray.kill(process)
    queue.stop()
    return Measured(episodes / options.measure, median(found), quantiles(found, n=100)[98])


def call_times(desktops: int) -> dict[str, float]:
    """Milliseconds of CPU per call of a queue with so many active leases, 50 workers among them that wait for one."""
    groups = -(-3 * desktops // GROUP_SIZE)
    queue = QueueService(batch_groups=groups, max_staleness=0, lease_seconds=3600.0)
    for _ in range(desktops // GROUP_SIZE + 1):
        queue.admit([0, 0], GROUP_SIZE)
    leases = queue.lease("w", desktops, 0.0)
    while queue.lease("others", desktops, 0.0):
        pass
    for number in range(50):
        threading.Thread(target=queue.lease, args=(f"idle{number}", 1, 3600.0), daemon=True).start()
    tickets = [lease.ticket for lease in leases]
    mine = iter(tickets[_RENEWED:])

    def average(count: int, call: Callable[[], Any]) -> float:
        start = time.process_time()
        for _ in range(count):
            call()
        return 1000.0 * (time.process_time() - start) / count

    return {
        f"renewal of {_RENEWED} leases": average(20, lambda: queue.renew(tickets[:_RENEWED])),
        "completion": average(20, lambda: queue.complete(next(mine), None)),
        "description": average(5, queue.describe),
    }


def print_calls(desktops: int) -> None:
    """The table of :func:`call_times`."""
    small, large = call_times(_FEW), call_times(desktops)
    for name, found in large.items():
        ratio = found / small[name]
        print(f"{name}: {found:.3f} ms of CPU with {desktops} leases, {ratio:.2f}x of that with {_FEW}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--desktops", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--processes", type=int, default=2, help="processes that the workers share")
    parser.add_argument("--seconds", type=float, default=20.0, help="mean seconds of an episode")
    parser.add_argument("--measure", type=float, default=40.0, help="seconds measured for each size")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.0, 1.0, 4.0], help="sizes of a result")
    parser.add_argument("--calls", action="store_true", help="CPU time of single calls, without Ray")
    options = parser.parse_args()
    if options.calls:
        print_calls(options.desktops)
        return
    if options.workers % options.processes or options.desktops % options.workers:
        parser.error("--workers must be a multiple of --processes, and --desktops of --workers")
    connect(num_cpus=options.processes, object_store_memory=2 << 30, log_to_driver=False)
    ideal = options.desktops / options.seconds
    print(f"{'result':>8} {'episodes/s':>11} {'groups/s':>9} {'MB/s':>8} {'completion p50':>15} {'p99':>8}")
    lines = []
    for size in options.megabytes:
        found = measure(options, size)
        times = f"{1000 * found.median:12.0f} ms {1000 * found.p99:5.0f} ms"
        print(f"{size:5g} MB {found.rate:11.1f} {found.rate / GROUP_SIZE:9.2f} {found.rate * size:8.0f} {times}")
        lines.append(f"{size:g} MB: {found.rate / ideal:.2f}x the rate of a queue that takes no time ({ideal:.1f}/s)")
    print("\n".join(lines))
    ray.shutdown()


if __name__ == "__main__":
    main()
