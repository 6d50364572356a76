"""The setup of the film tasks on a VLC that shows the film small in a corner, as it may on a loaded machine."""

from __future__ import annotations

import pytest

from osworld_gym.desktops.home_template.build import build_template
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.tasks.checks import difference
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.suites.desktop.suite import desktop_suite
from osworld_gym.tasks.suites.desktop.vlc import PICTURE

pytestmark = [pytest.mark.apps, pytest.mark.timeout(300)]

SEED = 7
#: Python: makes the most deeply nested of the large windows, which is the one of VLC's picture, as small as the film
SHRINK = """
from Xlib.display import Display
display = Display()
def nested(window, depth=0):
    yield depth, window
    for child in window.query_tree().children:
        if child.get_geometry().height > 400:
            yield from nested(child, depth + 1)
depth, picture = max(nested(display.screen().root), key=lambda found: found[0])
picture.configure(width=320, height=240)
display.sync()
"""


def test_a_film_that_is_shown_small_is_played_again() -> None:
    build_template(lambda: LocalDesktop(1920, 1080, template=None), print)
    task = desktop_suite().task("desktop-vlc-random")
    with LocalDesktop() as desktop:
        desktop.reset(SEED)
        prepare(task, desktop, seed=SEED)
        expected = desktop.screenshot()
        assert desktop.execute(["python3", "-c", SHRINK], shell=False).returncode == 0
        assert difference(expected, desktop.screenshot()) is not None
        desktop.setup({"type": "execute", "parameters": PICTURE})
        desktop.setup({"type": "sleep", "parameters": {"seconds": 2}})
        assert difference(expected, desktop.screenshot()) is None
