"""Options of an episode: OSWorld's sleeps on request, the file cache and the evaluators."""

import pytest

from osworld_gym import episode as module
from osworld_gym.episode import Episode, EpisodeOptions
from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.setup.file_cache import FileCache, setup_file
from osworld_gym.testing import CLICK, FINISHED, ScriptedDesktop, count_task
from osworld_gym.types import StopReason

GET = {"type": "download", "parameters": {"files": [{"url": "https://hub/a", "path": "/a"}]}}


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(module.time, "sleep", seconds.append)
    return seconds


def test_osworlds_sleeps_are_after_reset_each_response_and_before_evaluation(slept):
    episode = Episode(ScriptedDesktop(), EpisodeOptions(official_timing=True))
    episode.begin(count_task(1), seed=0)
    assert slept == [60.0]
    episode.act(CLICK)
    assert slept == [60.0, 2.0]
    assert episode.act(FINISHED).reward == 1.0
    assert slept == [60.0, 2.0, 2.0, 20.0]


def test_by_default_nothing_sleeps(slept):
    episode = Episode(ScriptedDesktop(), EpisodeOptions())
    episode.begin(count_task(1), seed=0)
    episode.act(CLICK)
    episode.act(FINISHED)
    assert slept == []


def test_a_failed_setup_hands_out_no_desktop():
    """The episode cannot go on, and the next one starts with a reset."""

    class Recorded(ScriptedDesktop):
        resets, breaks = 0, True

        def reset(self, seed):
            self.resets += 1
            super().reset(seed)

        def setup(self, step):
            super().setup(step)
            if self.breaks:
                raise DesktopError(FailureReason.setup_failed, "the second step")

    desktop = Recorded()
    episode = Episode(desktop, EpisodeOptions())
    count = {"type": "count", "parameters": {"count": 1}}
    result = episode.begin(count_task(1, config=[count]), seed=0)
    assert (result.stop, result.failure) == (StopReason.env_error, FailureReason.setup_failed)
    assert result.verdict is None
    with pytest.raises(RuntimeError, match="no episode is running"):
        episode.act(FINISHED)
    desktop.breaks = False
    assert episode.begin(count_task(1), seed=0).stop is None
    assert desktop.resets == 2
    assert episode.act(FINISHED).reward == 0.0  # the reset removed the count of the failed setup


def test_the_cache_of_the_options_is_used(tmp_path):
    desktop = ScriptedDesktop()
    written = {}
    desktop.write_file = lambda path, data: written.update({path: data})
    task = count_task(1, config=[GET])
    episode = Episode(desktop, EpisodeOptions(files=FileCache(tmp_path, offline=True, also=())))
    with pytest.raises(TaskError, match="requires https://hub/a, and this cache is offline"):
        episode.begin(task, seed=0)
    path = tmp_path / setup_file(task.id, "https://hub/a", "/a").relative_path
    path.parent.mkdir()
    path.write_bytes(b"x")
    assert episode.begin(task, seed=0).stop is None
    assert written == {"/a": b"x"}


def test_the_evaluators_of_the_options_are_used(monkeypatch, tmp_path):
    monkeypatch.setenv("OSWORLD_GYM_HOME", str(tmp_path))
    monkeypatch.delenv("OSWORLD_ROOT", raising=False)
    episode = Episode(ScriptedDesktop(), EpisodeOptions(evaluators=module.Evaluators("official")))
    episode.begin(count_task(1), seed=0)
    with pytest.raises(TaskError, match="OSWorld's evaluators are not installed"):
        episode.act(FINISHED)


def test_unknown_evaluators_are_reported() -> None:
    with pytest.raises(ValueError, match=r"must be one of auto, ours, official, got 'theirs'"):
        module.Evaluators("theirs")
