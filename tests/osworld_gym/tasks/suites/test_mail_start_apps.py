"""The setup of the mail tasks on a Thunderbird that drops the folder to open, as it does on a loaded machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from osworld_gym.desktops.home_template.build import build_template
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.tasks.checks import difference
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.suites.desktop.suite import desktop_suite
from osworld_gym.tasks.suites.desktop.thunderbird import PROFILE
from tests.support import polling

pytestmark = [pytest.mark.apps, pytest.mark.timeout(300)]

SEED = 7
#: a named pipe in the place of the file that Thunderbird reads before it lists the folders: it has session.json first
LATE_FOLDERS = """
cd {profile} && rm -f folderTree.json && mkfifo folderTree.json
(sleep {seconds}; echo '{{}}' > folderTree.json) > /dev/null 2>&1 &
"""


def windows(desktop: LocalDesktop) -> str:
    return desktop.execute(["wmctrl", "-l"], shell=False).output


def start_without_the_inbox(desktop: LocalDesktop) -> None:
    """Resets the desktop and starts Thunderbird so that it shows the root of its folders."""
    task = desktop_suite().task("desktop-mail-star")
    launch = next(k for k, step in enumerate(task.config) if step["type"] == "launch")
    for seconds in (3, 6, 12, 24):  # later than session.json, however slow the machine is
        desktop.reset(SEED)
        command = LATE_FOLDERS.format(profile=PROFILE, seconds=seconds)
        late = {"type": "execute", "parameters": {"command": command, "shell": True}}
        prepare(replace(task, config=(*task.config[:launch], late, task.config[launch])), desktop, seed=SEED)
        polling.until(lambda: "Local Folders - " in windows(desktop), "Thunderbird did not start", 90)
        if "Inbox - " not in windows(desktop):
            return
    pytest.fail("Thunderbird opened the inbox although it read the list of folders last")


def test_the_inbox_is_opened_although_thunderbird_dropped_it() -> None:
    build_template(lambda: LocalDesktop(1920, 1080, template=None), print)
    task = desktop_suite().task("desktop-mail-star")
    with LocalDesktop() as desktop:
        desktop.reset(SEED)
        prepare(task, desktop, seed=SEED)
        expected = desktop.screenshot()
        start_without_the_inbox(desktop)
        launch = next(k for k, step in enumerate(task.config) if step["type"] == "launch")
        prepare(replace(task, config=task.config[launch + 1 :]), desktop, seed=SEED)
        assert "Inbox - " in windows(desktop)
        assert difference(expected, desktop.screenshot()) is None
