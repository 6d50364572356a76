"""The suite ``desktop``: tasks on every application of the real desktop, those of the suite ``local`` among them."""

from __future__ import annotations

from functools import lru_cache

from osworld_gym.tasks.desktop_suite.calc import calc_tasks
from osworld_gym.tasks.desktop_suite.chrome import chrome_tasks
from osworld_gym.tasks.desktop_suite.gimp import gimp_tasks
from osworld_gym.tasks.desktop_suite.impress import impress_tasks
from osworld_gym.tasks.desktop_suite.multi import multi_tasks
from osworld_gym.tasks.desktop_suite.places import place_tasks
from osworld_gym.tasks.desktop_suite.thunderbird import thunderbird_tasks
from osworld_gym.tasks.desktop_suite.vlc import vlc_tasks
from osworld_gym.tasks.desktop_suite.writer import writer_tasks
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task

#: tasks kept from training, without ``desktop-``
HELD_OUT: tuple[str, ...] = ()


def new_tasks() -> tuple[Task, ...]:
    """The tasks that only this suite has."""
    return (
        *calc_tasks(),
        *writer_tasks(),
        *impress_tasks(),
        *gimp_tasks(),
        *thunderbird_tasks(),
        *chrome_tasks(),
        *vlc_tasks(),
        *place_tasks(),
        *multi_tasks(),
    )


@lru_cache(maxsize=1)
def desktop_suite() -> Suite:
    """The suite, with the disjoint splits ``train`` and ``held_out``; every application has tasks in both."""
    tasks = new_tasks()
    held_out = [f"desktop-{name}" for name in HELD_OUT]
    return Suite("desktop", tasks, {"train": [t.id for t in tasks if t.id not in held_out], "held_out": held_out})
