"""The suite ``desktop``: tasks on every application of the real desktop, including most of the suite ``local``."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.authoring import with_plan
from osworld_gym.tasks.suites.desktop.basics import place_tasks
from osworld_gym.tasks.suites.desktop.calc import calc_tasks
from osworld_gym.tasks.suites.desktop.chrome import chrome_tasks
from osworld_gym.tasks.suites.desktop.gimp import gimp_tasks
from osworld_gym.tasks.suites.desktop.impress import impress_tasks
from osworld_gym.tasks.suites.desktop.local import local_suite
from osworld_gym.tasks.suites.desktop.multi import multi_tasks
from osworld_gym.tasks.suites.desktop.thunderbird import thunderbird_tasks
from osworld_gym.tasks.suites.desktop.vlc import vlc_tasks
from osworld_gym.tasks.suites.desktop.writer import writer_tasks
from osworld_gym.tasks.task import Task

#: tasks of the split held_out, without ``desktop-``; tasks of the suite ``local`` keep their split
HELD_OUT = (
    *("calc-average", "calc-percent", "calc-delete-row", "writer-centre", "writer-table", "writer-append"),
    *("impress-bullet", "impress-duplicate-slide", "gimp-flip", "gimp-new", "vlc-random", "vlc-playlist"),
    *("chrome-bookmark-name", "chrome-form", "chrome-save-page", "mail-star", "mail-save", "files-nested"),
    *("editor-copy-between", "os-archive", "os-link", "os-infeasible", "multi-editor-writer", "multi-mail-editor"),
)


def new_tasks() -> tuple[Task, ...]:
    """The tasks that only this suite has."""
    office = (*calc_tasks(), *writer_tasks(), *impress_tasks())
    media = (*gimp_tasks(), *vlc_tasks())
    return (*office, *media, *chrome_tasks(), *thunderbird_tasks(), *place_tasks(), *multi_tasks())


def _steps(task: Task) -> int:
    return len((task.oracle or {})["steps"])


def _local_task(task: Task) -> Task:
    """A task of the suite ``local``, with this suite's keys and labels."""
    task = with_plan(task, "easy" if _steps(task) <= 3 else "medium")
    if task.domain == "terminal":  # OSWorld's name of that domain is "os"
        return replace(task, domain="os", raw={**task.raw, "related_apps": ["os", "terminal"]})
    return task


@lru_cache(maxsize=1)
def desktop_suite() -> Suite:
    """The suite, with the disjoint splits ``train`` and ``held_out``; every application has tasks in both."""
    local = local_suite()
    tasks = (*new_tasks(), *(_local_task(task) for task in local.tasks if _steps(task) > 1))
    held_out = [f"desktop-{name}" for name in HELD_OUT]
    held_out += [task.id for task in local.split("held_out") if _steps(task) > 1]
    train = [task.id for task in tasks if task.id not in held_out]
    return Suite("desktop", tasks, {"train": train, "held_out": held_out})
