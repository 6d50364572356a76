"""The dialect of trained policies: episodes are sorted by it, and the table has both kinds of tasks."""

from __future__ import annotations

from typing import cast

import pytest

from bepa_torchrl.checkpoints import tiny_checkpoint
from bepa_torchrl.rollout.episodes import EpisodeResult
from recipes.study import dialect


class Episode:
    def __init__(self, share: float, success: bool) -> None:
        self.share, self.success = share, success


def episodes(*found: tuple[float, bool]) -> list[EpisodeResult]:
    return [cast(EpisodeResult, Episode(*each)) for each in found]


def mean_share(results: list[Episode]) -> float:
    return sum(result.share for result in results) / len(results)


def test_episodes_are_sorted_by_the_share_of_their_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "share_in_dialect", mean_share)
    found = dialect.row(episodes((1.0, True), (0.5, False), (0.25, True), (0.25, True)))
    assert found == ("50.0", "50.0", "50.0", "100.0")
    assert dialect.row(episodes((0.0, True), (0.0, False))) == ("0.0", "0.0", "–", "50.0")


@pytest.mark.slow
def test_the_base_policy_rarely_uses_the_dialect() -> None:
    known, unknown = (line.split(" | ") for line in [*dialect.lines([tiny_checkpoint()], 1, 0)][2:])
    assert (known[0], known[1], unknown[1]) == ("| base", "known", "unknown")
    assert float(known[2]) <= 5.0
    assert float(known[5].strip(" |")) >= 80.0
