"""Ranks in a placement group of a Ray cluster, to which this process is connected; requires the extra ``ray``.

This process is a driver of Ray and no rank: it asks each rank's actor for output and the end, one call at a time, and
ends all of them with the first one that is lost. No call waits without a deadline.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from bepa_torchrl.failures import BAD_INPUT, INFRASTRUCTURE, INTERRUPTED
from bepa_torchrl.scale.rollouts.ray_cluster import check_version, reason_of
from bepa_torchrl.scale.sharding.placement.bundles import Needs, no_room, places, rank_environment, store_address
from bepa_torchrl.scale.sharding.placement.rank_process import RankProcess, interface_of
from osworld_gym import __version__

_START = 300.0  #: seconds for an actor to start on a busy node
_ANSWER = 30.0  #: seconds for an answer of an actor that has started
_POLL = 1.0  #: seconds that an actor waits for output
_SILENT = 60.0  #: seconds until an actor that does not answer is lost, if Ray has not noticed
_GRACE = 20.0  #: seconds for rank 0 to end after another rank is lost: it does so within 15
_STOP = 15.0  #: seconds for the ranks to end after SIGTERM
_INTERRUPT = 45.0  #: seconds for rank 0 to end after SIGINT: it gives desktops and workers 30
_CALLS = 8  #: simultaneous calls of an actor
_BUG = 1  #: exit code of a process that has ended with an exception that nobody expected

#: gets a rank, ``out`` or ``err``, and a line of its output
OnLine = Callable[[int, str, str], None]


class PlacementError(ConnectionError):
    """The cluster has no room for the ranks, or one of them does not start."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the ranks ended.

    Args:
        code: the exit code of the run.
        lost: which rank was lost, and how; None: none was.
    """

    code: int
    lost: str | None


class _Rank(RankProcess):
    """The actor of a rank."""

    def __init__(self, version: str, launcher: str) -> None:
        check_version(version)
        super().__init__(launcher)

    def node(self) -> dict[str, Any]:
        """Name, address and network interface of this node, and the GPUs that Ray has given the rank."""
        context = ray.get_runtime_context()
        address = ray.util.get_node_ip_address()
        gpus = list(map(str, context.get_accelerator_ids().get("GPU", [])))
        return {"host": socket.gethostname(), "address": address, "interface": interface_of(address), "gpus": gpus}


@contextmanager
def placed_ranks(
    needs: Needs, *, launcher: str, describe: Callable[[int], str], on_line: OnLine, seconds: float, fix: str
) -> Iterator[RayRanks]:
    """Places ranks; they have ended, and the placement group is released, when the block is left.

    Args:
        needs: what to ask the cluster for.
        launcher: as of :class:`~bepa_torchrl.scale.sharding.placement.rank_process.RankProcess`.
        describe: (exit code) → how a process ended, for messages.
        on_line: gets the output.
        seconds: within which the cluster must have room, also for the rollout services.
        fix: what the user may do if it has none.

    Raises:
        PlacementError: it has none, or a rank's actor does not start.
    """
    group = _reserved(needs, seconds, fix)
    try:
        ranks = RayRanks(needs, group, launcher, describe, on_line)
        try:
            yield ranks
        finally:
            ranks.end()
    finally:
        with suppress(RayError):
            remove_placement_group(group)


def _reserved(needs: Needs, seconds: float, fix: str) -> PlacementGroup:
    end = monotonic() + seconds
    # a name must be unique in the cluster, where other runs may have ranks, too
    group = placement_group(needs.bundles(), strategy="PACK", name=f"bepa trainer ranks {uuid4().hex[:8]}")
    try:
        while True:
            if group.wait(max(0.0, min(_POLL, end - monotonic()))) and not needs.lacking(ray.cluster_resources()):
                return group
            if monotonic() >= end:
                break
            sleep(min(0.2, max(0.0, end - monotonic())))
        nodes = sum(node["Alive"] for node in ray.nodes())
        found = no_room(needs, ray.cluster_resources(), ray.available_resources(), nodes, seconds=seconds, fix=fix)
        raise PlacementError(found)
    except BaseException:
        remove_placement_group(group)
        raise


class RayRanks:
    """The actors of the ranks.

    Args:
        needs: the ranks.
        group: their placement group, which has its resources.
        launcher: as of :func:`placed_ranks`.
        describe: as of :func:`placed_ranks`.
        on_line: as of :func:`placed_ranks`.

    Raises:
        PlacementError: an actor does not start.
    """

    def __init__(
        self, needs: Needs, group: PlacementGroup, launcher: str, describe: Callable[[int], str], on_line: OnLine
    ) -> None:
        nodes = placement_group_table(group)["bundles_to_node_id"]
        here = ray.get_runtime_context().get_node_id()
        self.places = places([nodes[number] for number in range(needs.ranks)], here)
        self._describe, self._on_line = describe, on_line
        self._started: set[int] = set()
        self._asked: dict[Any, tuple[int, float]] = {}  # answer → rank, time of the call
        self._ended: dict[int, int | str] = {}  # rank → its exit code, or how its actor was lost
        self._store: dict[str, int | str] = {}
        options = {"num_cpus": needs.cpus_per_rank, "num_gpus": needs.gpus_per_rank, "max_concurrency": _CALLS}
        actor: Any = ray.remote(_Rank)
        self._actors = []
        for place in self.places:
            where = PlacementGroupSchedulingStrategy(group, place.bundle, placement_group_capture_child_tasks=False)
            self._actors.append(actor.options(**options, scheduling_strategy=where).remote(__version__, launcher))
        try:
            self._nodes: list[dict[str, Any]] = self._all("node", seconds=_START)
        except BaseException:
            self.end()
            raise

    def __len__(self) -> int:
        return len(self._actors)

    def unseen(self, marker: str, text: str, folder: str) -> tuple[int, str, str] | None:
        """The first rank whose node does not see a file or folder of this machine, its node, and which; None: all do.

        Args:
            marker: absolute path of a file.
            text: what is in it.
            folder: absolute path of a folder.
        """
        found = self._all("sees", marker, text, folder)
        return next(((rank, self.host(rank), path) for rank, path in enumerate(found) if path is not None), None)

    def host(self, rank: int) -> str:
        """The name and address of a rank's node."""
        return f"{self._nodes[rank]['host']} ({self._nodes[rank]['address']})"

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: str, *, attempt: int) -> None:
        """Starts the processes of all ranks.

        Args:
            arguments: of Python, on each node.
            environment: in addition to the node's and to what torchrun would set.
            folder: in which they start.
            attempt: how many times the ranks have been placed before.

        Raises:
            PlacementError: one does not start.
        """
        address = store_address(self.places, self._nodes[0]["address"])
        port = self._call(0, "serve", address, seconds=_START)  # the actor imports torch
        self._store = {"ranks": len(self), "host": address, "port": port, "attempt": attempt}
        gpus = {rank: node["gpus"] for rank, node in enumerate(self._nodes)}
        for place, node in zip(self.places, self._nodes, strict=True):
            own = rank_environment(
                place, self.places, address=address, port=port, attempt=attempt, gpus=gpus, interface=node["interface"]
            )
            self._call(place.rank, "start", list(arguments), {**environment, **own}, folder)
            self._started.add(place.rank)
            self._ask(place.rank)

    def follow(self) -> Outcome:
        """Passes the output on until all ranks have ended; the others end within a minute after the first is lost."""
        self._until(lambda: 0 in self._ended or self._first_lost() is not None)
        lost = self._first_lost()
        if 0 not in self._ended and lost is not None:
            if self._tell(lost):
                self._until(lambda: 0 in self._ended, _GRACE)
            self._stop()
        self._until(self._all_ended, _GRACE if self._ended.get(0) == 0 else _ANSWER / 6)
        return self._outcome(lost)

    def interrupt(self) -> None:
        """Ends the run in order, as Ctrl-C does; returns when the ranks have ended, or after 45 s."""
        self._running()
        self._signal(0, signal.SIGINT)
        end = monotonic() + _INTERRUPT
        self._until(lambda: 0 in self._ended, _INTERRUPT)
        self._until(self._all_ended, max(0.0, min(_ANSWER / 6, end - monotonic())))

    def end(self) -> None:
        """Ends what still runs, in order if possible."""
        self._stop()
        ending = []
        for actor in self._actors:
            with suppress(RayError):
                ending.append(actor.end.remote())
        with suppress(RayError):
            if ending:
                ray.wait(ending, num_returns=len(ending), timeout=_ANSWER)
        for actor in self._actors:
            with suppress(RayError):
                ray.kill(actor)
        self._actors = []

    # --- what the ranks do --------------------------------------------------------------------------------------------

    def _outcome(self, lost: int | None) -> Outcome:
        """The exit code: rank 0's, or that of a lost rank's failure.

        A bug of rank 0 is one, unless the other rank was killed or its node lost: it is not repeated.
        """
        own = self._ended.get(0, "did not end")
        if own in (0, INTERRUPTED):
            return Outcome(int(own), None)
        if own == _BUG and lost is not None and self._exited(lost):
            return Outcome(_BUG, None)
        if lost is None and (isinstance(own, str) or own < 0):
            lost = 0
        if lost is None:
            return Outcome(int(own), None)
        code = BAD_INPUT if BAD_INPUT in (self._ended[lost], own) else INFRASTRUCTURE
        return Outcome(code, f"rank {lost} of {len(self)} {self._how(lost)}")

    def _exited(self, rank: int) -> bool:
        """Whether a rank has ended by itself."""
        how = self._ended[rank]
        return isinstance(how, int) and how > 0

    def _how(self, rank: int) -> str:
        """How a rank ended, and where."""
        how = self._ended.get(rank, "did not end")
        return f"{how if isinstance(how, str) else self._describe(how)}, on node {self.host(rank)}"

    def _first_lost(self) -> int | None:
        """The first of ranks 1, 2, … that has failed, which none does before rank 0 unless it is lost."""
        return next((rank for rank, how in self._ended.items() if rank and how != 0), None)

    def _all_ended(self) -> bool:
        return len(self._ended) == len(self)

    def _tell(self, lost: int) -> bool:
        """Tells rank 0 which rank is lost; whether it hears it."""
        try:
            return bool(self._call(0, "lost", lost, self._how(lost), self._store))
        except PlacementError:
            return False

    def _stop(self) -> None:
        """SIGTERM to what still runs."""
        running = self._running()
        for rank in sorted(running):
            self._signal(rank, signal.SIGTERM)
        self._until(lambda: running <= self._ended.keys(), _STOP)

    def _running(self) -> set[int]:
        """The ranks that run; those whose call was interrupted are asked again."""
        running = self._started - self._ended.keys()
        for rank in running - {rank for rank, _ in self._asked.values()}:
            self._ask(rank)
        return running

    def _signal(self, rank: int, number: int) -> None:
        with suppress(RayError):
            self._actors[rank].signal.remote(int(number))

    # --- calls --------------------------------------------------------------------------------------------------------

    def _until(self, reached: Callable[[], bool], seconds: float | None = None) -> None:
        """Passes output on until something is reached, all ranks have ended, or so many seconds have passed."""
        end = None if seconds is None else monotonic() + seconds
        while self._asked and not reached() and (end is None or monotonic() < end):
            done, _ = ray.wait(list(self._asked), num_returns=1, timeout=_POLL)
            for answer in done:
                self._read(answer)
            for answer, (rank, time) in list(self._asked.items()):
                # an answer may have come while this process was held up, for example by a stopped terminal
                if monotonic() - time > _SILENT and not ray.wait([answer], timeout=0)[0]:
                    del self._asked[answer]
                    self._ended[rank] = f"has not answered for {_SILENT:g} s"

    def _ask(self, rank: int) -> None:
        self._asked[self._actors[rank].poll.remote(_POLL)] = rank, monotonic()

    def _read(self, answer: Any) -> None:
        """Reads an answer of a rank's actor, and asks it again if the rank runs."""
        rank, _ = self._asked.pop(answer)
        try:
            lines, code = ray.get(answer, timeout=_ANSWER)
        except RayError as error:
            self._ended[rank] = f"was lost with its actor ({reason_of(error).rstrip('.')})"
            return
        for name, line in lines:
            self._on_line(rank, name, line)
        if code is None:
            self._ask(rank)
        else:
            self._ended[rank] = code

    def _call(self, rank: int, method: str, *arguments: Any, seconds: float = _ANSWER) -> Any:
        """Raises PlacementError if the actor has exited or does not answer."""
        return self._answers([getattr(self._actors[rank], method).remote(*arguments)], method, seconds)[0]

    def _all(self, method: str, *arguments: Any, seconds: float = _ANSWER) -> list[Any]:
        """The answers of all ranks' actors. Raises as :meth:`_call`."""
        return self._answers([getattr(actor, method).remote(*arguments) for actor in self._actors], method, seconds)

    def _answers(self, asked: list[Any], method: str, seconds: float) -> list[Any]:
        try:
            return list(ray.get(asked, timeout=seconds))
        except GetTimeoutError as error:
            raise PlacementError(
                f"an actor of the {len(self)} trainer ranks did not answer {method} within {seconds:g} s"
            ) from error
        except RayError as error:
            cause = str(error.cause) if isinstance(error, RayTaskError) else reason_of(error)
            raise PlacementError(f"an actor of the {len(self)} trainer ranks failed in {method}: {cause}") from error
