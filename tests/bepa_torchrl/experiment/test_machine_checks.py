"""bepa eval --oracle and --nothing: 1 and 0 on a machine that works, and what a broken one looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bepa_torchrl.cli import main
from bepa_torchrl.evaluation.outcomes import Outcome, Result
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.experiment.machine_checks import MachineCheck, play_check, unexpected, without_oracle
from bepa_torchrl.rollout.episodes import EpisodeJob, EpisodeResult
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import StopReason

SIM = ["eval", "suite=sim", "env.train_limit=12", "--json"]


def test_the_oracle_scores_1_and_doing_nothing_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = {}
    for check in ("oracle", "nothing"):
        out = str(tmp_path / check)
        assert main([*SIM, f"--{check}", "--passes", "2", "--out", out]) == 0
        cards[check] = json.loads(capsys.readouterr().out)
        assert main([*SIM, "--passes", "2", "--out", out]) == 2  # the folder is not a policy's
        assert f"an evaluation with other settings ({out}/settings.yaml)" in (told := capsys.readouterr().err)
        assert f": played by {check} → (not given); give another --out" in told
    assert {check: (card["score"], card["policy"]) for check, card in cards.items()} == {
        "oracle": (1.0, "oracle"),
        "nothing": (0.0, "nothing"),
    }
    assert cards["oracle"]["denominators"]["episodes"] == 24
    assert (cards["oracle"]["steps"] > 0, cards["nothing"]["steps"]) == (True, 0.0)


class BrokenDesktop(SimDesktop):
    """Fails at its first resets, of all desktops together."""

    failures = 0

    def reset(self, seed: int) -> None:
        if BrokenDesktop.failures:
            BrokenDesktop.failures -= 1
            raise DesktopError(FailureReason.died, "it broke")
        super().reset(seed)


@pytest.mark.parametrize(("failures", "retried", "stop"), [(1, 1, StopReason.finished), (3, 2, StopReason.env_error)])
def test_a_failed_desktop_is_replaced(
    failures: int, retried: int, stop: StopReason, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two retries: after one failure there is a result, after three there is none."""
    settings = load_config(["env=sim", "collect.retries=2"])
    ready = []

    def make(*_: object) -> BrokenDesktop:
        BrokenDesktop.failures = 0
        desktop = BrokenDesktop()
        BrokenDesktop.failures = failures - len(ready)
        ready.append(desktop)
        return desktop

    monkeypatch.setattr("bepa_torchrl.experiment.machine_checks.desktop_factory", lambda *_: make)
    results: list[EpisodeResult] = []
    play_check(settings, [EpisodeJob(load_suite("sim").tasks[0], (0,), 0)], MachineCheck.nothing, results.append)
    assert [(len(result.retried), result.stop) for result in results] == [(retried, stop)]
    assert results[0].failure is (FailureReason.died if stop is StopReason.env_error else None)
    assert len(ready) == min(failures, 2) + 1


def test_what_a_check_did_not_expect() -> None:
    kinds = {"won": Result.success, "lost": Result.failure, "none": Result.no_result}
    outcomes = [Outcome(task, "", 0, kind, None) for task, kind in kinds.items()]
    assert unexpected(MachineCheck.oracle, outcomes * 2) == ["lost"]
    assert unexpected(MachineCheck.nothing, outcomes) == ["won"]
    assert without_oracle([Task("official", "do"), load_suite("sim").tasks[0]]) == {
        "official": "the task has no oracle"
    }


def test_a_task_that_the_oracle_does_not_solve_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bepa_torchrl.experiment.machine_checks.MAX_ORACLE_STEPS", 0)
    assert main([*SIM, "env.train_limit=1", "--oracle", "--out", str(tmp_path / "out")]) == 3
    assert "--oracle: expected the score 1 of: sim-" in capsys.readouterr().err
