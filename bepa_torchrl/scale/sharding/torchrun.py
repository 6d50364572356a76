"""Ranks that torchrun or Ray has started, on one machine or several: rank 0 sends commands over the job's store.

The job's processes are all alike, ``torchrun … -m bepa_torchrl train …``. Rank 0 is the run; the others follow its
methods, one after the other. Keys of the store, which the agent of the first machine has:

    parts                   number of parts (methods) that rank 0 has begun
    part/<n>                the n-th part, JSON; or null: there are no more
    <n>/command/<i>         the i-th command of rank 0, JSON; or null: the part has ended
    <n>/exited/<rank>       why a rank has ended
    <n>/alive/<rank>        a counter that the rank increases while it runs

No clocks are compared: a rank is lost if its counter, read by rank 0, has not changed for the timeout.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from bepa_torchrl.scale.sharding.followers import LostRanks
from bepa_torchrl.scale.sharding.process_group import join_group
from bepa_torchrl.training.rank_failures import RankLostError, rank_failures

#: seconds of one request for a key that rank 0 sets any time later; torch warns at its end
_WAIT = 3600.0
#: seconds to connect to the store
_CONNECT = 60.0
#: times that a rank increases its counter within the timeout
_BEATS = 10
_ENDED = "null"


@dataclass(frozen=True, slots=True)
class TorchrunJob:
    """This process's part in a job of torchrun.

    Args:
        rank: the rank of this process.
        ranks: number of processes.
        local_rank: on this machine; the index of its GPU.
        local_ranks: processes on this machine.
        host: the host of the store.
        port: the port of the store.
        attempt: how many times torchrun has started the processes again.
    """

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    host: str
    port: int
    attempt: int

    def store(self, prefix: str = "") -> Store:
        """A new connection to the job's store. Raises RankLostError if there is none."""
        with rank_failures():
            store = TCPStore(self.host, self.port, is_master=False, timeout=timedelta(seconds=_CONNECT))
        return PrefixStore(f"bepa/{self.attempt}/{prefix}", store)

    def join(self, part: int, *, device: str, timeout: float) -> DeviceMesh:
        """Joins the process group of a part; returns the mesh of all ranks, one dimension.

        Args:
            part: its number.
            device: type of the devices, ``cpu`` (gloo) or ``cuda`` (NCCL, and gloo for tensors on the CPU).
            timeout: seconds that a collective operation waits for the other ranks.

        Raises:
            RankLostError: the other ranks did not join within the timeout.
        """
        if device == "cuda":
            torch.cuda.set_device(self.local_rank)
        one_machine = self.local_ranks == self.ranks
        join_group(
            self.store(f"{part}/group"), self.rank, self.ranks, device=device, one_machine=one_machine, timeout=timeout
        )
        return init_device_mesh(device, (self.ranks,))

    def report_exit(self, rank: int, text: str) -> bool:
        """Reports, from outside, that a rank has exited; whether rank 0 is in a part of the run, and so reads it.

        Args:
            rank: the rank.
            text: how it ended.

        Raises:
            RankLostError: the store does not answer.
        """
        with rank_failures():
            part = self.store().add("parts", 0) - 1
            if part < 0:
                return False
            store, key = self.store(f"{part}/"), f"exited/{rank}"
            if not store.check([key]):  # what the rank has said itself says more
                store.set(key, text)
        return True

    def end(self) -> None:
        """Rank 0: tells the other ranks that there are no more parts."""
        with suppress(RuntimeError, RankLostError):  # without the store, torchrun ends them
            store = self.store()
            store.set(f"part/{store.add('parts', 0)}", _ENDED)


def torchrun_job() -> TorchrunJob | None:
    """The job in which torchrun has started this process; None: it has not.

    Raises:
        ValueError: torchrun has no store that the processes can use.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        raise ValueError(
            "torchrun gives its processes no store; start it with --rdzv-backend=c10d (or --standalone, or "
            "--master-addr), without TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
        )
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, ranks, local_rank, local_ranks = (int(os.environ[name]) for name in numbers)
    return TorchrunJob(
        rank,
        ranks,
        local_rank,
        local_ranks,
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
    )


class TorchrunFollowers:
    """Rank 0's connection to the other ranks for one part of the run.

    If one of them exits before :meth:`close`, or does not answer for ``timeout``, this process exits within 15 s, as
    with :class:`~bepa_torchrl.scale.sharding.followers.Followers`.

    Args:
        job: the job of this process, which is rank 0.
        part: what the other ranks get to begin with.
        name: the name of the run, for messages.
        timeout: seconds until a rank that does not answer is lost.
    """

    def __init__(self, job: TorchrunJob, part: Mapping[str, Any], *, name: str, timeout: float) -> None:
        self.job, self.ranks, self._timeout = job, job.ranks, timeout
        self._lost = LostRanks(name)
        root = job.store()
        self.part = root.add("parts", 1) - 1
        self._store, self._commands = job.store(f"{self.part}/"), count()
        root.set(f"part/{self.part}", json.dumps(part))
        self._watcher = threading.Thread(target=self._watch, name="other ranks", daemon=True)
        self._watcher.start()

    def send(self, command: Mapping[str, Any] | None) -> None:
        """Sends one command to every rank; None: there are no more.

        Raises:
            RankLostError: one of them has exited, or the store does not answer.
        """
        if command is not None and (lost := self._lost.first(0.0)) is not None:
            raise RankLostError(lost)
        with rank_failures():
            self._store.set(f"command/{next(self._commands)}", json.dumps(command))

    def exited(self, seconds: float) -> str | None:
        """How the first rank to exit ended; None: all run after ``seconds``."""
        return self._lost.first(seconds)

    def ending(self) -> None:
        """From now on an exit of a rank is not reported."""
        self._lost.ending()

    def close(self, *, kill: bool) -> None:
        """Ends the part; the ranks wait for the next one.

        Args:
            kill: the run has failed; torchrun ends the ranks.
        """
        self.ending()
        if not kill:
            with suppress(RankLostError):
                self.send(None)
        self._watcher.join()

    def _watch(self) -> None:
        others = range(1, self.ranks)
        seen = dict.fromkeys(others, (0, monotonic()))
        try:
            store = self.job.store(f"{self.part}/")
            while not self._lost.wait_for_end(min(1.0, self._timeout / _BEATS)):
                for rank in others:
                    text = store.get(f"exited/{rank}").decode() if store.check([f"exited/{rank}"]) else None
                    beats = store.add(f"alive/{rank}", 0)
                    if beats != seen[rank][0]:
                        seen[rank] = beats, monotonic()
                    elif monotonic() - seen[rank][1] > self._timeout:
                        text = text or f"has not answered for {self._timeout:g} s"
                    if text is not None:
                        self._lost.report(rank, f"rank {rank} of {self.ranks} {text}")
                        return
        except (RuntimeError, RankLostError) as error:
            self._lost.report(0, f"torchrun's store does not answer ({str(error).splitlines()[0]})")


def follow_parts(job: TorchrunJob, follow: Callable[[Mapping[str, Any], int, Iterator[str]], None]) -> None:
    """Ranks 1, 2, …: follows every part of the run, until rank 0 ends it.

    Args:
        job: the job of this process.
        follow: called with a part, its number, and the commands of rank 0.

    Raises:
        RankLostError: torchrun's store is gone, since torchrun has ended on the first machine.
        Exception: as ``follow``; rank 0 gets the message.
    """
    root = job.store()
    for number in count():
        part = json.loads(_awaited(root, f"part/{number}"))
        if part is None:
            return
        store = job.store(f"{number}/")
        with _alive(job, number, part["timeout"]):
            try:
                follow(part, number, _commands(store))
            except BaseException as error:
                with suppress(RuntimeError):
                    text = " ".join(str(error).split()) or type(error).__name__
                    store.set(f"exited/{job.rank}", f"ended with an error: {text}")
                raise


def _commands(store: Store) -> Iterator[str]:
    for number in count():
        line = _awaited(store, f"command/{number}")
        if line == _ENDED:
            return
        yield line


def _awaited(store: Store, key: str) -> str:
    """A key's value, which rank 0 may set any time later, for example after rollouts.

    Torchrun ends this process if rank 0 exits on the same machine; on others, the store is gone.
    """
    while True:
        with rank_failures():
            try:
                store.wait([key], timedelta(seconds=_WAIT))
            except dist.DistStoreError:
                continue
            value: bytes = store.get(key)
            return value.decode()


@contextmanager
def _alive(job: TorchrunJob, part: int, timeout: float) -> Iterator[None]:
    """Increases this rank's counter during the block."""
    ended, store = threading.Event(), job.store(f"{part}/")

    def beat() -> None:
        with suppress(RuntimeError):  # without the store, the main thread notices, too
            while not ended.wait(timeout / (2 * _BEATS)):
                store.add(f"alive/{job.rank}", 1)

    thread = threading.Thread(target=beat, name="alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
