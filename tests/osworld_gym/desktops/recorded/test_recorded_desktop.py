"""The recorded desktop: what was recorded on another desktop comes back, all else does nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from documented_keys import documented

from osworld_gym.desktops.checks import run_checks
from osworld_gym.desktops.recorded.desktop import IMAGES, SCORE_FILE, RecordedDesktop, recording_path
from osworld_gym.desktops.recorded.graph import Recording, RecordingError, State, key_of
from osworld_gym.desktops.recorded.recorder import Recorder, RecordingDesktop
from osworld_gym.desktops.registry import make_desktop
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import TaskError
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.types import Action, StopReason

SIZE = (128, 128)
TASK = sim_suite().split("train")[0]
SEEDS = (3, 8)


def recorded(folder: Path) -> dict[int, list]:
    """Records the oracle on two seeds of the simulated desktop; seed → actions and frames, the first screen first."""
    recorder, runs = Recorder(folder, SIZE), {}
    with SimDesktop(popup_probability=0.0) as inner:
        desktop = RecordingDesktop(inner, recorder, lambda d: verify(TASK, d, stop=StopReason.finished).score)
        for seed in SEEDS:
            desktop.reset(seed)
            prepare(TASK, desktop, seed=seed)
            oracle, runs[seed] = make_oracle(TASK, "native"), [((), desktop.screenshot().pixels)]
            while step := oracle.next_step(inner):  # it reads the simulated desktop's own state
                desktop.perform(step.actions)
                runs[seed].append((step.actions, desktop.screenshot().pixels))
    recorder.recording.save(recording_path(folder, TASK.id))
    return runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("twin")


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[int, list]:
    return recorded(folder)


def twin(folder: Path, seed: int) -> RecordedDesktop:
    desktop = make_desktop("recorded", folder=str(folder), width=SIZE[0], height=SIZE[1])
    desktop.reset(seed)
    desktop.setup({"type": "recorded", "parameters": {"task": TASK.id}})
    return desktop


def score(desktop: RecordedDesktop) -> float:
    return json.loads(desktop.read_file(SCORE_FILE))["score"]


def test_it_keeps_the_contract_of_desktops(tmp_path: Path) -> None:
    results = run_checks(lambda: RecordedDesktop(str(tmp_path)))
    assert [(result.name, result.detail) for result in results if result.outcome != "passed"] == []


def test_a_recording_desktop_keeps_the_contract_of_the_one_that_it_wraps(tmp_path: Path) -> None:
    results = run_checks(lambda: RecordingDesktop(SimDesktop(), Recorder(tmp_path, SIZE), lambda _: 0.0))
    assert [(result.name, result.detail) for result in results if result.outcome != "passed"] == []


def test_recorded_actions_lead_to_recorded_screens_and_scores(folder: Path, runs: dict[int, list]) -> None:
    for number, seed in enumerate(SEEDS):
        desktop = twin(folder, number)  # the seeds in order, again and again
        first, *steps = runs[seed]
        assert len(steps) >= 2
        assert (desktop.screenshot().pixels == first[1]).all()
        assert score(desktop) == 0.0
        for actions, frame in steps:
            desktop.perform(actions)
            assert (desktop.screenshot().pixels == frame).all()
        assert score(desktop) == 1.0
        assert desktop.unknown_actions == 0
    again = twin(folder, len(SEEDS) + 1)
    assert (again.screenshot().pixels == runs[SEEDS[1]][0][1]).all()


def test_actions_that_were_not_recorded_do_nothing(folder: Path, runs: dict[int, list]) -> None:
    desktop = twin(folder, 0)
    before = desktop.screenshot().pixels
    unknown = Action("type", content="never typed")
    desktop.perform([unknown])
    desktop.perform([Action("wait"), Action("finished")])
    assert (desktop.screenshot().pixels == before).all()
    assert desktop.unknown_actions == 1
    for actions, _ in runs[SEEDS[0]][1:]:
        desktop.perform([unknown, *actions])  # together they were not recorded; the known ones are performed
    assert score(desktop) == 1.0


def test_a_click_in_the_same_square_is_the_same_click() -> None:
    keys = [key_of([Action("click", start=point)], (640, 360)) for point in ((40, 40), (59, 59.4), (60, 40), (1e9, -5))]
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] == key_of([Action("click", start=(639, 0))], (640, 360))
    assert key_of([Action("click", start=(40, 40))], SIZE) != key_of([Action("right_single", start=(40, 40))], SIZE)


class Lamp(SimDesktop):
    """A screen that is on after a click, and hidden state: the number of clicks."""

    clicks = 0
    drift = 0

    def reset(self, seed):
        super().reset(seed)
        self.clicks = 0

    def perform(self, actions):
        self.clicks += sum(action.kind == "click" for action in actions)

    def screenshot(self):
        frame = super().screenshot()
        return type(frame)(pixels=np.full_like(frame.pixels, 10 * (self.clicks % 2) + self.drift))


def test_states_are_told_apart_by_what_led_to_them_and_changes_of_nothing_are_none(tmp_path: Path) -> None:
    """After two clicks the screen is the first one again, and the score another; a double click changes neither."""
    recorder = Recorder(tmp_path, SIZE)
    lamp = Lamp()
    desktop = RecordingDesktop(lamp, recorder, lambda _: float(lamp.clicks == 2))
    desktop.reset(1)
    desktop.screenshot()
    for action in (Action("click", start=(5, 5)), Action("left_double", start=(9, 9)), Action("click", start=(5, 5))):
        desktop.perform([action])
        desktop.screenshot()
    states = recorder.recording.seeds[1]
    assert [state.score for state in states] == [0.0, 0.0, 1.0]
    assert states[0].screen == states[2].screen != states[1].screen
    assert sorted(states[1].after.values()) == [1, 2]
    assert len(list((tmp_path / IMAGES).iterdir())) == 2


class Clipboard(SimDesktop):
    """Its screen changes when something is pasted that was copied before."""

    copied = pasted = False

    def reset(self, seed):
        super().reset(seed)
        self.copied = self.pasted = False

    def perform(self, actions):
        for action in actions:
            self.pasted = self.pasted or (self.copied and action.key == "ctrl v")
            self.copied = self.copied or action.key == "ctrl c"

    def screenshot(self):
        frame = super().screenshot()
        return type(frame)(pixels=np.full_like(frame.pixels, 200 * self.pasted))


@pytest.mark.parametrize("episodes", [("cv",), ("v", "cv")])
def test_what_a_key_changes_out_of_sight_counts(tmp_path: Path, episodes: tuple[str, ...]) -> None:
    """To paste without having copied is nothing, whichever of the two was recorded first."""
    recorder, clipboard = Recorder(tmp_path, SIZE), Clipboard()
    recording = RecordingDesktop(clipboard, recorder, lambda _: float(clipboard.pasted))
    for keys in episodes:
        recording.reset(1)
        recording.screenshot()
        for key in keys:
            recording.perform([Action("hotkey", key=f"ctrl {key}")])
            recording.screenshot()
    assert recorder.differing == 0
    recorder.recording.save(recording_path(tmp_path, TASK.id))
    for keys, expected in (("v", 0.0), ("cv", 1.0)):
        desktop = twin(tmp_path, 0)
        for key in keys:
            desktop.perform([Action("hotkey", key=f"ctrl {key}")])
        assert score(desktop) == expected


def test_an_episode_that_goes_another_way_than_recorded_adds_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, SIZE)
    lamp = Lamp()
    desktop = RecordingDesktop(lamp, recorder, lambda _: 0.0)
    click = Action("click", start=(5, 5))
    for drift in (0, 0, 1):
        lamp.drift = 0
        desktop.reset(1)
        desktop.screenshot()
        lamp.drift = drift
        for action in (click, click) if drift else (click,):
            desktop.perform([action])
            desktop.screenshot()
    assert len(recorder.recording.seeds[1]) == 2
    assert (recorder.repeated, recorder.differing, recorder.other_starts) == (2, 1, 0)  # clicks, no first screens
    desktop.reset(1)
    desktop.screenshot()
    assert (recorder.repeated, recorder.differing, recorder.other_starts) == (2, 1, 1)


def test_a_verifier_that_fails_leaves_no_state(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, SIZE)

    def broken(_):
        raise RuntimeError("no verdict")

    desktop = RecordingDesktop(SimDesktop(), recorder, broken)
    desktop.reset(1)
    with pytest.raises(RuntimeError):
        desktop.screenshot()
    desktop.screenshot()
    assert recorder.recording.seeds == {}


def test_recordings_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    desktop = RecordedDesktop(str(tmp_path))
    with pytest.raises(TaskError, match=r"lost\.json: not a recording"):
        desktop.setup({"type": "recorded", "parameters": {"task": "lost"}})
    Recording((64, 64), {0: [State("0" * 32, 0.0)]}).save(recording_path(tmp_path, "small"))
    with pytest.raises(TaskError, match=r"recorded on a screen of \(64, 64\) pixels, not of \(640, 360\)"):
        desktop.setup({"type": "recorded", "parameters": {"task": "small"}})
    for states in ([], [State("../x", 0.0)], [State("0" * 32, 2.0)], [State("0" * 32, 0.0, {"a": 1})]):
        Recording((64, 64), {0: states}).save(recording_path(tmp_path, "wrong"))
        with pytest.raises(RecordingError, match="record the task again"):
            Recording.load(recording_path(tmp_path, "wrong"))
    with pytest.raises(PermissionError):
        desktop.write_file(SCORE_FILE, b"1")


def test_the_file_has_the_documented_keys(folder: Path, runs: dict[int, list]) -> None:
    assert len(runs) == len(SEEDS)
    data = json.loads(recording_path(folder, TASK.id).read_text())
    names = {name.removeprefix("seeds.<seed>.[].") for name in documented("Recordings of the provider recorded")}
    states = [state for states in data["seeds"].values() for state in states]
    assert {*data, *states[0]} == names
