"""The suite ``sim``: every instance of every template as an OSWorld task, with known/unknown pools and splits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from osworld_gym.desktops.sim.applications import CATALOGUE
from osworld_gym.desktops.sim.desktop import STATE_FILE
from osworld_gym.desktops.sim.goals import allowed_changes, rules
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.sim.templates import TEMPLATES, Instance
from osworld_gym.tasks.task import Task

KNOWN, UNKNOWN = "known", "unknown"


def _rules(instance: Instance) -> list[dict[str, Any]]:
    """The rules that the final state has reached the goals and is otherwise unchanged."""
    out = [{"path": p, "op": op, "value": v} for goal in instance.goals for p, op, v in rules(goal)]
    allowed = {name for goal in instance.goals for name in allowed_changes(goal, CATALOGUE)}
    return [*out, {"path": ["changed"], "op": "subset", "value": sorted(allowed)}]


def _task(instance: Instance, number: int) -> Task:
    setup: dict[str, Any] = {"settings": dict(instance.settings)}
    if instance.trash:
        setup["trash"] = list(instance.trash)
    return Task(
        id=f"sim-{instance.template.replace('_', '-')}-{number:02d}",
        instruction=instance.instruction,
        config=({"type": "sim", "parameters": setup},),
        evaluator={
            "func": "sim_state",
            "result": {"type": "vm_file", "path": STATE_FILE, "dest": "state.json"},
            "expected": {"type": "rule", "rules": {"rules": _rules(instance)}},
        },
        domain=instance.domain,
        oracle={"type": "sim", "goals": [dict(goal) for goal in instance.goals]},
        tags=(KNOWN if instance.known else UNKNOWN, f"template:{instance.template}"),
    )


#: split → number of known tasks in it, and of unknown ones; the other tasks are only in ``all``
SPLIT_SIZES = {"train": 32, "held_out": 32, "validation": 16}
#: unknown topics that are not in train, to test transfer from other topics
TRANSFER = (
    "save_field",
    "secure_host",
    "archive",
    "copy_file",
    "restore_file",
    "open_file",
    "delete_file",
    "drag_file",
)


def _split(pool: list[tuple[str, str]], transfer: Sequence[str]) -> dict[str, list[str]]:
    """Splits (topic, id) pairs by :data:`SPLIT_SIZES`, from all topics in turn.

    So a held-out task is mostly a variant of training tasks (the opposite, another value, another combination), except
    for the topics of ``transfer``, which are not in ``train``.
    """
    topics: dict[str, list[str]] = {}
    for topic, task_id in pool:
        topics.setdefault(topic, []).append(task_id)
    # train leaves at least half of each topic to the other splits
    trainable = {topic: (len(ids) + 1) // 2 for topic, ids in topics.items() if topic not in transfer}
    return {
        split: _deal(
            topics, count, trainable if split == "train" else {topic: len(ids) for topic, ids in topics.items()}
        )
        for split, count in SPLIT_SIZES.items()
    }


def _deal(topics: dict[str, list[str]], count: int, limits: dict[str, int]) -> list[str]:
    """Removes ``count`` ids from the topics' lists, one of each topic in turn, at most ``limits[topic]`` of a topic."""
    dealt: list[str] = []
    for turn in range(max(limits.values())):
        for number, topic in enumerate(topic for topic, limit in limits.items() if turn < limit):
            if len(dealt) < count and topics[topic]:
                # every other toggle is turned off, every other one on
                dealt.append(topics[topic].pop(number % 2 if turn == 0 and len(topics[topic]) > 1 else 0))
    if len(dealt) < count:
        raise ValueError(f"expected at least {count} tasks, got {len(dealt)}")
    return dealt


@lru_cache(maxsize=1)
def sim_suite() -> Suite:
    """The suite ``sim``. Splits ``train``, ``held_out`` and ``validation``, each half known, half unknown by tag.

    ``known`` tasks only need what the base policy's cloning data covers; ``unknown`` tasks need something else (a
    setting, a file, a verb), alone or together with known things. ``validation`` is for choosing hyper-parameters and
    is in no result. ``split("all")`` has every instance.
    """
    instances = [(instance, i) for template in TEMPLATES for i, instance in enumerate(template())]
    tasks = tuple(_task(instance, i) for instance, i in instances)
    splits: dict[str, list[str]] = {name: [] for name in SPLIT_SIZES}
    for known in (True, False):
        pairs = zip(instances, tasks, strict=True)
        pool = [(instance.topic, task.id) for (instance, _), task in pairs if instance.known == known]
        for name, ids in _split(pool, () if known else TRANSFER).items():
            splits[name].extend(ids)
    return Suite("sim", tasks, splits)


def cloning_tasks() -> tuple[Task, ...]:
    """Every known task; the cloning data may contain all of them."""
    return tuple(task for task in sim_suite().tasks if KNOWN in task.tags)
