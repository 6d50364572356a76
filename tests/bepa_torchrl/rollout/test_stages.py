"""Episodes that an earlier process has finished are not played again, unless they lack the rows that are read now."""

from __future__ import annotations

from pathlib import Path

from bepa_torchrl.evaluation.success_rate import evaluate
from bepa_torchrl.rollout.episodes import EpisodeResult
from bepa_torchrl.rollout.stages import Stages
from bepa_torchrl.storage.ledger import Ledger
from bepa_torchrl.testing import ScriptedPolicy, lamp_task, lamp_vector


def test_an_episode_without_the_rows_that_are_wanted_now_is_played_again(tmp_path: Path) -> None:
    """As by a resume with record.outcomes=true: the steps of the episodes before it would be missing for good."""

    def play(*, with_rows: bool) -> tuple[int, list[int]]:
        ledger, kept = Ledger(tmp_path / "ledger"), list[EpisodeResult]()
        stages, known = Stages(ledger), len(ledger)
        counted: list[int] = []

        class Progress:
            def begin(self, _name: str, _total: int, done: int) -> None:
                counted.append(done)

            def advance(self) -> None: ...

        stages.progress = Progress()
        with lamp_vector(1) as vector:
            evaluate(
                ScriptedPolicy(lambda _: True),
                vector,
                [lamp_task(0)],
                episodes=2,
                keep=kept.extend,
                play=stages.episodes("evaluation", rows=lambda _: with_rows),
            )
        assert counted[0] <= known
        return counted[0], [0 if result.rows is None else len(result.rows) for result in kept]

    assert play(with_rows=False)[0] == 0
    assert play(with_rows=False) == (2, [0, 0])
    played, rows = play(with_rows=True)
    assert (played, min(rows) > 0) == (0, True)
    assert play(with_rows=True) == (2, rows)
