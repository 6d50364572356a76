"""The suite ``varied``: editor, file manager and the desktop's menu, for a screen of 640 x 360 pixels or larger.

Colours, the positions of windows and files, the names of other files and the order of menus vary with the seed (setup
step ``arrange``), so that an episode's actions follow from its screenshots only.
"""

from __future__ import annotations

from functools import lru_cache

from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.varied.editor_tasks import editor_tasks
from osworld_gym.tasks.suites.varied.file_tasks import file_tasks
from osworld_gym.tasks.suites.varied.instances import KNOWN, as_task
from osworld_gym.tasks.suites.varied.menu_tasks import menu_tasks
from osworld_gym.tasks.task import Task

SCREEN = (640, 360)  #: (width, height) in pixels of the smallest screen on which every oracle works
#: split → number of known tasks that are dealt to it, and of unknown ones; the other tasks are only in ``all``
SPLIT_SIZES = {"train": 12, "held_out": 6, "validation": 3}
#: dealt after those, which stay as they were: three more for ``validation``, and tasks for a closer evaluation
FURTHER_SIZES = {"validation": 3, "held_out_more": 12}
#: unknown topics that are not in train but in the other splits, to test transfer from other topics
TRANSFER = ("submenu Tab Size",)
#: unknown topics that are in no split: known skills solve them (dragging a file moves it, too)
SOLVED = ("cut",)


@lru_cache(maxsize=1)
def varied_suite() -> Suite:
    """The suite. Splits ``train``, ``held_out``, ``validation`` and ``held_out_more``, half known, half unknown by tag.

    A known task requires menus, items and verbs that the known tasks' recordings contain. An unknown one requires
    others: a menu of the editor, a submenu of the desktop, or items of the file manager that no known task uses.
    """
    instances = (*editor_tasks(), *file_tasks(), *menu_tasks())
    pairs = [(instance, as_task(instance, number)) for number, instance in enumerate(instances)]
    splits: dict[str, list[str]] = {name: [] for name in SPLIT_SIZES | FURTHER_SIZES}
    for known in (True, False):
        topics: dict[str, list[str]] = {}
        for instance, task in pairs:
            if instance.known == known:
                topics.setdefault(instance.topic, []).append(task.id)
        for name, count in SPLIT_SIZES.items():
            splits[name] += _deal(topics, count, SOLVED + (TRANSFER if name == "train" else ()))
        for name, count in FURTHER_SIZES.items():
            splits[name] += _deal_all(topics, count)
    return Suite("varied", tuple(task for _, task in pairs), splits)


def _deal(topics: dict[str, list[str]], count: int, without: tuple[str, ...]) -> list[str]:
    """Removes one id of each of ``count`` topics: the first one left, those of TRANSFER in front, and others evenly."""
    left = [topic for topic, ids in topics.items() if ids and topic not in without]
    left.sort(key=lambda topic: topic not in TRANSFER)
    if len(left) < count:
        raise ValueError(f"expected at least {count} topics with a task, got {len(left)}")
    return [topics[left[i * len(left) // count]].pop(0) for i in range(count)]


def _deal_all(topics: dict[str, list[str]], count: int) -> list[str]:
    """Removes ``count`` ids, one of each topic that has one in turn, until there are enough.

    Raises:
        ValueError: fewer are left.
    """
    found: list[str] = []
    while len(found) < count:
        left = sum(bool(ids) and topic not in SOLVED for topic, ids in topics.items())
        found += _deal(topics, max(1, min(left, count - len(found))), SOLVED)
    return found


def cloning_tasks() -> tuple[Task, ...]:
    """Every known task; the cloning data may contain all of them."""
    return tuple(task for task in varied_suite().tasks if KNOWN in task.tags)
