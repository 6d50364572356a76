"""A task of a real desktop, recorded and shown again: a twin rests on the desktop doing the same twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.desktops.recorded.desktop import SCORE_FILE, RecordedDesktop, recording_path
from osworld_gym.desktops.recorded.recorder import Recorder, RecordingDesktop
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.suites.varied.suite import varied_suite
from osworld_gym.types import StopReason

pytestmark = pytest.mark.desktop
SCREEN, SEED = (640, 360), 5


def test_the_oracles_run_on_a_real_desktop_is_solved_again_on_its_recording(tmp_path: Path) -> None:
    task = varied_suite().split("train")[0]
    recorder, steps = Recorder(tmp_path, SCREEN), []
    with LocalDesktop(*SCREEN) as inner:
        desktop = RecordingDesktop(inner, recorder, lambda d: verify(task, d, stop=StopReason.finished).score)
        for _ in range(2):  # the second time nothing is new
            desktop.reset(SEED)
            prepare(task, desktop, seed=SEED)
            oracle, steps = make_oracle(task, "native"), [((), desktop.screenshot().pixels)]
            while step := oracle.next_step(inner):
                desktop.perform(step.actions)
                steps.append((step.actions, desktop.screenshot().pixels))
    assert len(recorder.recording.seeds[SEED]) == len(steps)
    assert (recorder.repeated, recorder.differing, recorder.other_starts) == (len(steps) - 1, 0, 0)
    recorder.recording.save(recording_path(tmp_path, task.id))
    twin = RecordedDesktop(str(tmp_path), *SCREEN)
    twin.reset(0)
    twin.setup({"type": "recorded", "parameters": {"task": task.id}})
    for actions, frame in steps:
        twin.perform(actions)
        assert (twin.screenshot().pixels == frame).all()
    assert json.loads(twin.read_file(SCORE_FILE)) == {"score": 1.0}
