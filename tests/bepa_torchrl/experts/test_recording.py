"""Recording oracles in parallel: cached by content, continued after a kill, desktop failures tried again."""

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from bepa_torchrl.experts.recorder import record_expert
from bepa_torchrl.experts.recording import Episode, load_recordings, record_all
from bepa_torchrl.storage.lock import FolderInUseError, locked
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.suites.sim.suite import sim_suite
from osworld_gym.tasks.task import Task

TASKS = sim_suite().split("train")[:4]
SCREEN = SimDesktop().screen_size


def episodes(seeds=2, styles=("native", "expert"), tasks=TASKS):
    return [Episode(task, style, seed) for seed in range(seeds) for style in styles for task in tasks]


class FlakyDesktop(SimDesktop):
    """A simulated desktop whose setups fail while ``left`` is above 0."""

    left = 0

    def setup(self, step):
        if FlakyDesktop.left > 0:
            FlakyDesktop.left -= 1
            raise DesktopError(FailureReason.hung, "the desktop hung")
        super().setup(step)


class LostDesktop(SimDesktop):
    """A simulated desktop that fails with one seed."""

    def reset(self, seed):
        if seed == 1:
            raise DesktopError(FailureReason.hung, "the desktop hung")
        super().reset(seed)


def test_every_episode_is_recorded_as_if_it_were_alone(tmp_path):
    chosen = episodes()
    done = record_all(tmp_path, chosen, SimDesktop, desktops=3)
    assert (done.episodes, done.cached, done.unsolved, done.lost) == (16, 0, [], [])
    traces = list(load_recordings(tmp_path, chosen, SCREEN))
    assert done.turns == sum(len(trace.steps) for trace in traces)
    assert done.seconds > 0
    for episode, trace in zip(chosen, traces, strict=True):
        alone = record_expert(SimDesktop(), episode.task, episode.seed, style=episode.style)
        assert trace == replace(alone, expert=episode.name(SCREEN))


def test_a_second_run_records_only_what_is_missing(tmp_path):
    assert record_all(tmp_path, episodes(1), SimDesktop).episodes == 8
    made = []

    def make():
        made.append(1)
        return SimDesktop()

    again = record_all(tmp_path, episodes(1), make)
    assert (again.episodes, again.cached, len(made)) == (0, 8, 1)  # one desktop, for the size of its screen
    assert record_all(tmp_path, episodes(2), SimDesktop).episodes == 8
    episodes(2)[3].path(tmp_path, SCREEN).unlink()
    assert record_all(tmp_path, episodes(2), SimDesktop).episodes == 1


def test_a_changed_task_is_recorded_again(tmp_path):
    record_all(tmp_path, episodes(1, ["native"]), SimDesktop)
    changed = (replace(TASKS[0], instruction="Do it."), *TASKS[1:])
    done = record_all(tmp_path, episodes(1, ["native"], changed), SimDesktop)
    assert (done.episodes, done.cached) == (1, 3)
    (trace, *_) = load_recordings(tmp_path, episodes(1, ["native"], changed), SCREEN)
    assert trace.instruction == "Do it."


def test_the_name_depends_on_task_style_seed_and_screen():
    task, other = TASKS[:2]
    names = {
        Episode(task, "native", 0).name(SCREEN),
        Episode(other, "native", 0).name(SCREEN),
        Episode(task, "expert", 0).name(SCREEN),
        Episode(task, "native", 1).name(SCREEN),
        Episode(task, "native", 0).name((640, 360)),
    }
    assert len(names) == 5


def test_a_failed_desktop_is_replaced_and_its_episode_tried_again(tmp_path):
    FlakyDesktop.left = 2
    done = record_all(tmp_path, episodes(1), FlakyDesktop, desktops=2)
    assert (done.episodes, done.lost) == (8, [])
    assert done.failures == Counter({FailureReason.hung: 2})
    assert "desktop failures: hung 2" in str(done)


def test_an_episode_is_given_up_after_its_attempts_and_the_others_are_recorded(tmp_path):
    done = record_all(tmp_path, episodes(2, ["native"], TASKS[:2]), LostDesktop, desktops=2, attempts=3)
    assert done.episodes == 2
    assert done.failures[FailureReason.hung] == 6
    assert len(done.lost) == 2
    assert all("the desktop hung" in line for line in done.lost)


def test_an_unsolved_episode_is_not_stored(tmp_path):
    goals = TASKS[1].oracle
    wrong = replace(TASKS[0], oracle=goals)
    done = record_all(tmp_path, [Episode(wrong, "native", 0), Episode(TASKS[2], "native", 0)], SimDesktop, desktops=1)
    assert done.episodes == 1
    assert [line.split()[0] for line in done.unsolved] == [wrong.id]
    assert len(list(load_recordings(tmp_path, [Episode(wrong, "native", 0)], SCREEN))) == 0


def test_a_wrong_task_ends_the_run(tmp_path):
    without = Task(id="t", instruction="i", evaluator={"func": "infeasible"})
    with pytest.raises(TaskError, match="has no oracle"):
        record_all(tmp_path, [Episode(without, "native", 0), *episodes(1)], SimDesktop, desktops=2)
    with pytest.raises(ValueError, match="at least 1, got 0 and 3"):
        record_all(tmp_path, episodes(1), SimDesktop, desktops=0)


def test_one_process_writes_to_a_folder(tmp_path):
    with locked(tmp_path), pytest.raises(FolderInUseError):
        record_all(tmp_path, episodes(1), SimDesktop)


@pytest.mark.slow
def test_a_killed_run_is_continued(tmp_path):
    """Kills the program while it records; what is there afterwards is complete, and a second run adds the rest."""
    command = [sys.executable, "-m", "bepa_torchrl.cli", "record", str(tmp_path)]
    options = ["--suite", "sim", "--provider", "sim", "--split", "train", "--seeds", "8", "--desktops", "2"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert "turns" in process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    (tmp_path / "images" / ".0123456789ab.part.png").write_bytes(b"half")  # as a kill during a write leaves it
    tasks = sim_suite().split("train")
    everything = [Episode(task, "native", seed) for seed in range(8) for task in tasks]
    there = [episode for episode in everything if episode.path(tmp_path, SCREEN).exists()]
    assert 5 <= len(there) < len(everything)
    assert len(list(load_recordings(tmp_path, everything, SCREEN))) == len(there)  # each passes its checks
    missing = [episode for episode in everything if episode not in there][:10]
    done = record_all(tmp_path, there + missing, SimDesktop, desktops=2)
    assert (done.episodes, done.cached) == (10, len(there))
    assert list(tmp_path.rglob("*.part*")) == []
