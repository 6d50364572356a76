"""The suite ``varied`` on real desktops: a sample in the desktop tier, every task at night."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.tasks.checks import MAX_ORACLE_STEPS, check_task, difference
from osworld_gym.tasks.evaluation.verify import verify
from osworld_gym.tasks.oracles.base import play_oracle
from osworld_gym.tasks.oracles.conditions import popups, windows
from osworld_gym.tasks.oracles.registry import make_oracle
from osworld_gym.tasks.setup.arrange import arranged_files
from osworld_gym.tasks.setup.run import prepare
from osworld_gym.tasks.setup.themes import GRID, OPENBOX_THEMES, RC
from osworld_gym.tasks.suites.varied.suite import SCREEN, varied_suite
from osworld_gym.tasks.task import Task
from osworld_gym.types import Screenshot

pytestmark = pytest.mark.desktop

SUITE = varied_suite()
#: one task of each template
SAMPLE = list({task.tags[1]: task for task in SUITE.tasks}.values())


@pytest.fixture(scope="module")
def desktop() -> Iterator[LocalDesktop]:
    with LocalDesktop(*SCREEN) as made:
        yield made


def sound(desktop: LocalDesktop, task: Task, seed: int) -> None:
    assert check_task(desktop, task, seed) == []
    begin(desktop, task, seed + 1)
    steps, stop = play_oracle(desktop, make_oracle(task, "native"), max_steps=MAX_ORACLE_STEPS)
    assert verify(task, desktop, stop=stop).score == 1.0, f"the native oracle, {steps} steps"


def begin(desktop: LocalDesktop, task: Task, seed: int) -> Screenshot:
    desktop.reset(seed)
    prepare(task, desktop, seed=seed)
    return desktop.screenshot()


@pytest.mark.parametrize("task", SAMPLE, ids=lambda task: task.id)
def test_a_task_of_each_template_is_sound(desktop: LocalDesktop, task: Task) -> None:
    sound(desktop, task, SAMPLE.index(task))


@pytest.mark.nightly
@pytest.mark.parametrize("task", SUITE.tasks, ids=lambda task: task.id)
def test_every_task_is_sound(desktop: LocalDesktop, task: Task) -> None:
    sound(desktop, task, 1000 + SUITE.tasks.index(task))


@pytest.mark.parametrize("template", ["toggle", "trash"])
def test_seeds_show_different_first_screens(desktop: LocalDesktop, template: str) -> None:
    task = next(task for task in SUITE.tasks if f"template:{template}" in task.tags)
    frames = [begin(desktop, task, seed) for seed in (0, 1, 2)]
    assert all(difference(one, other) is not None for one, other in itertools.pairwise(frames))


@pytest.mark.parametrize("theme", OPENBOX_THEMES)
def test_every_theme_has_windows_and_menus_on_the_grid(desktop: LocalDesktop, theme: str) -> None:
    seed = next(seed for seed in itertools.count() if f"<name>{theme}</name>" in arranged_files({}, seed, SCREEN)[RC])
    begin(desktop, next(task for task in SUITE.tasks if "template:toggle" in task.tags), seed)
    (window,) = windows(desktop)
    assert (window["x"] % GRID, window["y"] % GRID) == (0, 0)
    task = next(task for task in SUITE.tasks if "template:choose" in task.tags)
    begin(desktop, task, seed)
    step = make_oracle(task, "native").next_step(desktop)
    assert step is not None
    desktop.perform(step.actions)
    desktop.wait_still(5.0)
    (menu,) = popups(desktop)
    # six items with a frame of one pixel on each side, which covers the outer ones
    assert (menu["x"], menu["y"] + 1, menu["height"]) == (170, 4 * GRID, 6 * GRID)


def test_a_file_too_many_in_the_trash_is_no_success(desktop: LocalDesktop) -> None:
    task = next(task for task in SUITE.tasks if "template:trash" in task.tags)
    begin(desktop, task, 3)
    desktop.run("cd ~/Documents && rm $(ls | head -n 2) apple", shell=True)
    _, stop = play_oracle(desktop, make_oracle(SUITE.tasks[0], "native"), max_steps=0)
    assert verify(task, desktop, stop=stop).score == 0.0


def test_the_oracles_solve_on_a_larger_screen_too() -> None:
    with LocalDesktop(1280, 720) as desktop:
        for template in ("toggle", "trash", "choose"):
            task = next(task for task in SUITE.tasks if f"template:{template}" in task.tags)
            sound(desktop, task, 5)
