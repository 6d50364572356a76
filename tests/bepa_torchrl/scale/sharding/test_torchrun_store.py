"""Commands and failures between ranks over a store, as torchrun gives them one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bepa_torchrl.scale.sharding.torchrun import TorchrunFollowers, TorchrunJob, follow_parts
from bepa_torchrl.training.rank_failures import RankLostError

COMMANDS = ({"do": "begin", "phase": "x"}, {"do": "gather"})


@pytest.fixture
def job() -> Iterator[TorchrunJob]:
    """Of rank 0 of 2, with a store in this process."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield TorchrunJob(0, 2, 0, 2, "127.0.0.1", store.port, 0)
    del store


class Rank(threading.Thread):
    """Rank 1, which keeps what it gets; ``error`` is raised at the first command."""

    def __init__(self, job: TorchrunJob, error: Exception | None = None) -> None:
        super().__init__(daemon=True)
        self.job, self.error = replace(job, rank=1, local_rank=1), error
        self.got: list[tuple[Mapping[str, Any], int, list[Any]]] = []
        self.raised: BaseException | None = None
        self.has_one = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            follow_parts(self.job, self._follow)
        except BaseException as error:  # noqa: BLE001 - the test reads it
            self.raised = error

    def _follow(self, part: Mapping[str, Any], number: int, lines: Iterator[str]) -> None:
        commands: list[Any] = []
        self.got.append((part, number, commands))
        for line in lines:
            if self.error is not None:
                raise self.error
            commands.append(json.loads(line))
            self.has_one.set()


def test_every_part_gets_its_commands_in_order(job: TorchrunJob) -> None:
    rank = Rank(job)
    parts = [{"folder": name, "timeout": 30.0} for name in ("first", "second")]
    for part in parts:
        leader = TorchrunFollowers(job, part, name="run", timeout=30.0)
        for command in COMMANDS:
            leader.send(command)
        leader.close(kill=False)
    job.end()
    rank.join(30.0)
    assert not rank.is_alive()
    assert rank.raised is None
    assert rank.got == [(part, number, list(COMMANDS)) for number, part in enumerate(parts)]


def test_a_ranks_error_reaches_rank_0(job: TorchrunJob) -> None:
    rank = Rank(job, ValueError("no such\ncheckpoint"))
    leader = TorchrunFollowers(job, {"timeout": 30.0}, name="run", timeout=30.0)
    try:
        leader.send(COMMANDS[0])
        assert leader.exited(30.0) == "rank 1 of 2 ended with an error: no such checkpoint"
        with pytest.raises(RankLostError, match="rank 1 of 2 ended with an error: no such checkpoint"):
            leader.send(COMMANDS[1])
    finally:
        leader.close(kill=True)
    rank.join(30.0)
    assert isinstance(rank.raised, ValueError)


def test_a_rank_that_does_not_answer_is_lost_after_the_timeout(job: TorchrunJob) -> None:
    """Nobody is rank 1."""
    leader = TorchrunFollowers(job, {"timeout": 0.5}, name="run", timeout=0.5)
    assert leader.exited(0.2) is None
    assert leader.exited(30.0) == "rank 1 of 2 has not answered for 0.5 s"
    leader.close(kill=True)


def test_a_rank_that_waits_for_a_command_answers(job: TorchrunJob) -> None:
    """Its counter goes on, 20 times within the timeout."""
    rank = Rank(job)
    leader = TorchrunFollowers(job, {"timeout": 4.0}, name="run", timeout=4.0)
    store, end = job.store("0/"), time.monotonic() + 30.0
    while store.add("alive/1", 0) < 3:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert leader.exited(0.0) is None
    leader.close(kill=False)
    job.end()
    rank.join(30.0)
    assert rank.raised is None


def test_a_store_that_is_gone_is_an_error_of_the_other_ranks() -> None:
    """As if torchrun had been killed on the first machine, while rank 1 waits for a command."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = TorchrunJob(0, 2, 0, 2, "127.0.0.1", store.port, 0)
    rank = Rank(job)
    leader = TorchrunFollowers(job, {"timeout": 30.0}, name="run", timeout=30.0)
    leader.send(COMMANDS[0])
    assert rank.has_one.wait(30.0)
    leader.close(kill=True)
    del store
    rank.join(30.0)
    assert isinstance(rank.raised, RankLostError)
