"""How the program that places ranks reads their answers; the cluster is a fake that answers at once."""

from __future__ import annotations

from typing import Any

import pytest

from bepa_torchrl.experiment.method_handle import exit_text
from bepa_torchrl.failures import BAD_INPUT, INFRASTRUCTURE, INTERRUPTED
from bepa_torchrl.scale.sharding.placement import ray_ranks
from bepa_torchrl.scale.sharding.placement.ray_ranks import Outcome, RayRanks

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


class FakeCluster:
    """Ranks that have ended with these codes, whose answers are there; a rank with None never answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, codes: list[int | None]) -> None:
        self.now, self.codes = 0.0, codes
        monkeypatch.setattr(ray_ranks, "monotonic", lambda: self.now)
        monkeypatch.setattr(ray_ranks.ray, "wait", self.wait)
        monkeypatch.setattr(ray_ranks.ray, "get", lambda answer, **_: ([("out", "a line")], codes[answer]))

    def wait(self, answers: list[int], *, num_returns: int = 1, timeout: float) -> tuple[list[int], list[int]]:
        done = [answer for answer in answers if self.codes[answer] is not None][:num_returns]
        self.now += 0.0 if done else timeout
        return done, [answer for answer in answers if answer not in done]

    def ranks(self, on_line: Any = lambda *_: None) -> RayRanks:
        """Ranks that were asked for their output."""
        ranks = object.__new__(RayRanks)
        ranks._actors, ranks._started, ranks._ended = [None] * len(self.codes), set(), {}
        ranks._nodes = [{"host": f"node{rank}", "address": "10.0.0.1"} for rank in range(len(self.codes))]
        ranks._asked = {rank: (rank, 0.0) for rank in range(len(self.codes))}
        ranks._describe, ranks._on_line, ranks._store = exit_text, on_line, {}
        return ranks


def test_ranks_that_have_answered_are_not_lost_when_this_program_was_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal was stopped by Ctrl-S, or a pipe was not read, for longer than a rank may be silent."""
    cluster = FakeCluster(monkeypatch, [0, 0])

    def held_up(*_: Any) -> None:
        cluster.now += ray_ranks._SILENT + 1.0

    ranks = cluster.ranks(held_up)
    assert ranks.follow() == Outcome(0, None)
    assert ranks._ended == {0: 0, 1: 0}


def test_a_rank_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(monkeypatch, [3, None])
    ranks = cluster.ranks()
    ranks._until(ranks._all_ended, 1000.0)
    assert ranks._outcome(1) == Outcome(
        INFRASTRUCTURE, "rank 1 of 2 has not answered for 60 s, on node node1 (10.0.0.1)"
    )
    assert 60.0 < cluster.now < 70.0


@pytest.mark.parametrize(
    ("own", "lost", "code"),
    [
        (1, 1, 1),  # a bug on both: not repeated by restarts=
        (1, 3, 1),  # a bug of rank 0, with which the other has lost the process group
        (1, -9, INFRASTRUCTURE),  # killed: the bug may be its consequence
        (3, 1, INFRASTRUCTURE),
        (3, -9, INFRASTRUCTURE),
        (143, 1, INFRASTRUCTURE),
        (3, BAD_INPUT, BAD_INPUT),
        (BAD_INPUT, 3, BAD_INPUT),
        (0, 3, 0),
        (INTERRUPTED, 3, INTERRUPTED),
    ],
)
def test_the_exit_code_of_several_ends(own: int, lost: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = FakeCluster(monkeypatch, []).ranks()
    ranks._actors = [None, None]
    ranks._nodes = [{"host": "a", "address": "b"}] * 2
    ranks._ended = {1: lost, 0: own}
    assert ranks._outcome(1).code == code
