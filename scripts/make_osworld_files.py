"""Makes an OSWorld checkout whose files are made up: the tasks of ``osworld_offline`` that can be solved with them here.

    python -m scripts.make_osworld_files FOLDER
    OSWORLD_ROOT=FOLDER bepa eval suite=osworld_offline env.train_split=made_up_files --oracle --card --out OUT

``OSWORLD_ROOT`` is the real checkout, whose task definitions are copied unchanged; none is part of this repository. The
files that they download, several gigabytes, are replaced by small ones of the same type (``made_files.py``), setup and
gold file different. Left out are tasks that cannot run on a local desktop of this machine, that have no oracle, and that
need more of a file than its type (``made_files.LIMITS``).
"""

from __future__ import annotations

import json
import shutil
import sys
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


def write(folder: Path, suite: Suite) -> list[Task]:
    """Writes the checkout, which must not exist; returns its tasks.

    Raises:
        TaskError: the suite has none of the tasks.
    """
    by_domain = json.loads(OFFLINE.read_text(encoding="utf-8"))
    listed = {task_id for ids in by_domain.values() for task_id in ids}
    solvable = [task for task in suite.tasks if task.id in listed and task.id[:8] not in LIMITS and oracle_of(task)]
    folder.mkdir(parents=True)
    files = FileCache(folder / "cache", offline=True, also=())
    for task in solvable:
        fill_cache(files.root, task)
    machine = Machine(files=files)
    chosen = [task for task in solvable if not reasons_against(task, "local", machine)]
    if not chosen:
        raise TaskError(f"suite {suite.name!r} has no task of {OFFLINE.name} that can run on this machine")
    for task in solvable:
        if task not in chosen:
            shutil.rmtree(files.root / task.id, ignore_errors=True)
    examples = folder / "evaluation_examples"
    for task in chosen:
        write_text(
            examples / "examples" / task.domain / f"{task.id}.json",
            json.dumps(task.to_json(), indent=2, ensure_ascii=False) + "\n",
        )
    domains = sorted({task.domain for task in chosen})
    by_domain = {domain: [task.id for task in chosen if task.domain == domain] for domain in domains}
    write_text(examples / f"test_{LABEL}.json", json.dumps(by_domain, indent=1) + "\n")
    return chosen


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m scripts.make_osworld_files FOLDER")
    try:
        made = write(Path(sys.argv[1]), load_suite("osworld"))
    except (TaskError, FileExistsError) as error:
        sys.exit(f"make_osworld_files: {error}")
    print(f"{len(made)} tasks of {len({task.domain for task in made})} domains")
