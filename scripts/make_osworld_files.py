"""Makes an OSWorld checkout whose files are made up: tasks of ``osworld_offline`` that are solved with them here.

    python -m scripts.make_osworld_files FOLDER [TASKS]
    OSWORLD_ROOT=FOLDER bepa eval suite=osworld_offline env.train_split=made_up_files --oracle --card --out OUT

``OSWORLD_ROOT`` is the real checkout, whose task definitions are copied unchanged; none is part of this repository. The
files that they download, several gigabytes, are replaced by small ones of the same type (``made_files.py``), setup and
gold file different. Left out are tasks that cannot run on a local desktop of this machine, that have no oracle, or that
need more of a file than its type. With TASKS, at most so many of a domain are taken, spread over its list.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bepa_torchrl.evaluation.suites import OFFLINE
from osworld_gym.atomic import write_text
from osworld_gym.errors import TaskError
from osworld_gym.tasks.setup.file_cache import FileCache
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.suites.osworld.requirements import Machine, reasons_against
from osworld_gym.tasks.suites.osworld.solutions import oracle_of
from osworld_gym.tasks.suites.registry import load_suite
from osworld_gym.tasks.task import Task
from scripts.made_files import LIMITS, fill_cache

LABEL = "made_up_files"
#: tasks whose made-up gold file is no solution → why
UNSOLVED = {
    "881deb30": "the sheet is compared as the CSV that LibreOffice makes of it",
    "0b17a146": "the solution has a subscript",
    "0bf05a7d": "the sheet is compared as the CSV that LibreOffice makes of it",
    "0cecd4f3": "the sheets of the solution have given names",
    "21ab7b40": "the solution has cells with a font",
    "21df9241": "the sheet is compared as the CSV that LibreOffice makes of it",
    "30e3e107": "the solution has a pivot table",
    "4f07fbe9": "the sheet is compared as the CSV that LibreOffice makes of it",
    "a01fbce3": "the sheet is compared as the CSV that LibreOffice makes of it",
    "ecb0df7a": "the solution has a list of valid values",
}


def write(folder: Path, suite: Suite, most: int | None = None) -> list[Task]:
    """Writes the checkout, which must not exist; returns its tasks.

    Args:
        folder: of the checkout.
        suite: the real tasks.
        most: number of tasks of a domain at most; None: all.

    Raises:
        TaskError: the suite has none of the tasks.
    """
    by_domain = json.loads(OFFLINE.read_text(encoding="utf-8"))
    listed = {task_id for ids in by_domain.values() for task_id in ids}
    solvable = [task for task in suite.tasks if task.id in listed and _is_solved(task)]
    folder.mkdir(parents=True)
    files = FileCache(folder / "cache", offline=True, also=())
    for task in solvable:
        fill_cache(files.root, task)
    machine = Machine(files=files)
    able = [task for task in solvable if not reasons_against(task, "local", machine)]
    if not able:
        raise TaskError(f"suite {suite.name!r} has no task of {OFFLINE.name} that can run on this machine")
    chosen = [task for domain in by_domain for task in _spread([t for t in able if t.domain == domain], most)]
    for task in solvable:
        if task not in chosen:
            shutil.rmtree(files.root / task.id, ignore_errors=True)
    examples = folder / "evaluation_examples"
    for task in chosen:
        write_text(
            examples / "examples" / task.domain / f"{task.id}.json",
            json.dumps(task.to_json(), indent=2, ensure_ascii=False) + "\n",
        )
    lists = {domain: [task.id for task in chosen if task.domain == domain] for domain in by_domain}
    lists = {domain: ids for domain, ids in lists.items() if ids}
    write_text(examples / f"test_{LABEL}.json", json.dumps(lists, indent=1) + "\n")
    return chosen


def _is_solved(task: Task) -> bool:
    return task.id[:8] not in LIMITS and task.id[:8] not in UNSOLVED and oracle_of(task) is not None


def _spread(tasks: Sequence[Task], most: int | None) -> list[Task]:
    count = len(tasks) if most is None else min(most, len(tasks))
    return [tasks[index * len(tasks) // count] for index in range(count)]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m scripts.make_osworld_files FOLDER [TASKS]")
    try:
        made = write(Path(sys.argv[1]), load_suite("osworld"), *map(int, sys.argv[2:]))
    except (TaskError, FileExistsError) as error:
        sys.exit(f"make_osworld_files: {error}")
    print(f"{len(made)} tasks of {len({task.domain for task in made})} domains")
