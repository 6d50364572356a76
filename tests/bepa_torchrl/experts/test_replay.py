"""``bepa experts convert --replay``: traces that the verifier accepts are kept, others are one line each."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from bepa_torchrl.cli import main
from bepa_torchrl.experts import ExpertTrace, record_expert, save_traces
from bepa_torchrl.experts.replay import RETRIES, Replay, play_all
from bepa_torchrl.experts.seed import read_seed
from bepa_torchrl.rollout.stages import SilentProgress
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.episode import EpisodeOptions
from osworld_gym.errors import FailureReason
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.testing.scripted_desktop import Fault, ScriptedDesktop, count_task
from osworld_gym.types import Action, StopReason
from osworld_gym.vector import DesktopVector

CLICK = "Thought: on\nAction: click(start_box='(3,4)')"
DONE = "Thought: done\nAction: finished()"


@pytest.fixture(scope="module")
def traces() -> list[ExpertTrace]:
    """Three recorded successes; the first trace's last click is another one, and the second is of another desktop."""
    recorded = []
    for number, task in enumerate(sim_suite().split("train")[:3]):
        with SimDesktop() as desktop:
            recorded.append(record_expert(desktop, task, number))
    wrong, elsewhere, right = recorded
    missed = (*wrong.steps[:-2], replace(wrong.steps[-2], actions=(Action("click", start=(0, 0)),)), wrong.steps[-1])
    return [replace(wrong, steps=missed), replace(elsewhere, env_seed=(elsewhere.env_seed or 0) + 1), right]


def test_only_what_the_verifier_accepts_is_kept(
    traces: list[ExpertTrace], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_traces(traces, tmp_path / "traces")
    command = ["experts", "convert", str(tmp_path / "traces"), "env.desktops=2", "env.max_steps=30"]
    assert main([*command, "--out", str(tmp_path / "all")]) == 0
    assert set(read_seed(tmp_path / "all").tasks) == {trace.task_id for trace in traces}
    capsys.readouterr()
    out = tmp_path / "accepted"
    assert main([*command, "--replay", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert set(read_seed(out).tasks) == {traces[2].task_id}
    assert "1 of 3 traces converted" in shown
    refused = [line for line in shown.splitlines() if line.startswith("refused")]
    assert len(refused) == 2
    for trace in traces[:2]:
        (line,) = [line for line in refused if trace.where in line]
        assert ": its replay ended with finished and the verifier gave 0; " in line
        assert "or leave --replay out" in line
    found = json.loads((out / "dropped.json").read_text())["traces"]
    assert {trace["task"]: "refused" in trace for trace in found} == {
        trace.task_id: number < 2 for number, trace in enumerate(traces)
    }


def test_nothing_is_left(traces: list[ExpertTrace], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_traces(traces[:1], tmp_path / "traces")
    command = ["experts", "convert", str(tmp_path / "traces"), "--replay", "env.desktops=1", "env.max_steps=30"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert "0 of 1 traces converted" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_a_replay_without_an_end_is_verified_after_its_last_response() -> None:
    with DesktopVector(ScriptedDesktop, 2, EpisodeOptions()) as vector:
        replays = [Replay(count_task(n), 0, (CLICK,) * 2) for n in (2, 3)] + [Replay(count_task(0), 0, (DONE, CLICK))]
        found = play_all(vector, replays, SilentProgress())
    assert [result.stop for result in found] == [StopReason.max_steps] * 2 + [StopReason.finished]
    assert [result.reward for result in found] == [1.0, 0.0, 1.0]


def test_a_desktop_that_fails_is_no_refusal_by_the_verifier() -> None:
    for faulty, failure in ((RETRIES, None), (RETRIES + 1, FailureReason.died)):
        faults = chain([Fault("perform", 1, "died")] * faulty, repeat(Fault("perform", 99, "died")))
        with DesktopVector(lambda faults=faults: ScriptedDesktop(next(faults)), 1, EpisodeOptions()) as vector:
            (result,) = play_all(vector, [Replay(count_task(1), 0, (CLICK, DONE))], SilentProgress())
        assert (result.failure, result.reward) == (failure, float(failure is None))
