"""Recording on real desktops in parallel, and the cloning data made from it."""

from functools import partial

import pytest

from bepa_torchrl.experts.recording import Episode, load_recordings, record_all
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.tasks.suites.varied.suite import varied_suite
from recipes.tiny_local.cloning import Library, batch
from recipes.tiny_local.config import SCREEN

pytestmark = pytest.mark.desktop


def test_two_desktops_record_both_styles_for_cloning(tmp_path):
    suite = varied_suite()
    tasks = [next(t for t in suite.tasks if f"template:{name}" in t.tags) for name in ("choose", "trash", "rename")]
    episodes = [Episode(task, style, 0) for task in tasks for style in ("native", "expert")]
    done = record_all(tmp_path, episodes, partial(LocalDesktop, *SCREEN), desktops=2)
    assert (done.episodes, done.unsolved, done.lost) == (6, [], [])
    assert record_all(tmp_path, episodes, partial(LocalDesktop, *SCREEN), desktops=2).cached == 6
    traces = list(load_recordings(tmp_path, episodes, SCREEN))
    library = Library.of(traces[::2], traces[1::2], [task.id for task in tasks if "known" in task.tags])
    assert len(library.known) == 2
    assert {screen.pixels.shape for screen in batch(library, 0, 8)} == {(SCREEN[1], SCREEN[0], 3)}
