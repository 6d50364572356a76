"""Registry of suites: the bundled ones, ``osworld`` (the checkout at ``OSWORLD_ROOT``), or a folder."""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from osworld_gym.errors import ExtensionError, TaskError, did_you_mean
from osworld_gym.extensions import Registry
from osworld_gym.folders import expanded, osworld_root
from osworld_gym.tasks.suite import Suite
from osworld_gym.tasks.task import Task

OSWORLD = "osworld"
ANSWER = 10.0  # seconds for git to print a revision


def _osworld() -> Suite:
    root = osworld_root()
    if root is None:
        raise TaskError(
            "suite 'osworld' requires OSWORLD_ROOT, the folder of a checkout of github.com/xlang-ai/OSWorld; it is not "
            "set; fix: export OSWORLD_ROOT=FOLDER, or name that folder as the suite"
        )
    folder = _examples_of(root)
    if folder is None:
        problem = "has no evaluation_examples/examples" if root.is_dir() else "does not exist"
        raise TaskError(f"OSWORLD_ROOT={root}: expected the folder of an OSWorld checkout; it {problem}")
    return osworld_suite(folder)


#: suite name → its constructor
SUITES: Registry[Callable[[], Suite]] = Registry(
    "osworld_gym.suites",
    {
        "sim": "osworld_gym.tasks.suites.sim.suite:sim_suite",
        "local": "osworld_gym.tasks.suites.desktop.local:local_suite",
        "varied": "osworld_gym.tasks.suites.varied.suite:varied_suite",
        "desktop": "osworld_gym.tasks.suites.desktop.suite:desktop_suite",
        OSWORLD: _osworld,
    },
    expects="a function without arguments that returns a Suite",
)


def load_suite(name: str | Path) -> Suite:
    """The suite with this name, or in this folder or file, whose path is then its name.

    Raises:
        ExtensionError: what was added by this name is no function without arguments, or returns no Suite.
        TaskError: neither a known name, nor a folder with ``examples/<domain>/<id>.json``, nor a file of tasks on web
            sites (:mod:`osworld_gym.tasks.suites.web`).
    """
    if str(name) in SUITES:
        return _made(str(name), SUITES[str(name)])
    if is_web_file(name):
        from osworld_gym.tasks.suites.web import web_suite  # most suites are not of web tasks

        return replace(web_suite(expanded(name)), name=str(name))
    return replace(osworld_suite(suite_folder(Path(name))), name=str(name))


def _made(name: str, make: Callable[[], Suite]) -> Suite:
    """The suite of a function in ``SUITES``; raises ExtensionError as :func:`load_suite`."""
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        raise ExtensionError(f"suite {name!r}: expected a function without arguments, {make!r:.80}: {error}") from error
    suite = make()
    if not isinstance(suite, Suite):
        raise ExtensionError(f"suite {name!r}: expected that {make!r:.80} returns a Suite, got {type(suite).__name__}")
    return suite


def is_web_file(name: str | Path) -> bool:
    """Whether a suite is a file of tasks on web sites: its name ends in ``.json``."""
    return str(name).endswith(".json")


def suite_folder(path: Path) -> Path:
    """The folder that contains ``examples``: ``path`` or its ``evaluation_examples``.

    Raises:
        TaskError: neither of them has ``examples``.
    """
    folder = _examples_of(expanded(path))
    if folder is not None:
        return folder
    known, hint = ", ".join(sorted(SUITES)), did_you_mean(str(path), SUITES)
    fix = f"known: {known}, or a folder that has examples/<domain>/<id>.json"
    raise TaskError(f"unknown suite {str(path)!r}{hint}; {fix}")


def _examples_of(path: Path) -> Path | None:
    """The folder that contains ``examples`` (the path or its ``evaluation_examples``), or None."""
    return next((f for f in (path, path / "evaluation_examples") if (f / "examples").is_dir()), None)


def osworld_suite(folder: Path) -> Suite:
    """The tasks of an OSWorld ``evaluation_examples`` folder, ordered by domain and id.

    Each list ``test_<label>.json`` (``{domain: [id, ...]}``; upstream has several, and they overlap) becomes the tag
    ``<label>`` of its tasks, except ``test_all.json``, which is the split ``test``; without it, ``test`` has all tasks.
    A task whose keys, setup steps or evaluator this version does not know is in it with the reason
    (:attr:`osworld_gym.tasks.task.Task.unsupported`), so that the others can be used.

    Raises:
        TaskError: there is no task file, a file is no JSON or no task, two have the same id, or a list has an unknown
            id.
    """
    tasks = [Task.load(path, keep_unsupported=True) for path in sorted((folder / "examples").glob("*/*.json"))]
    if not tasks:
        raise TaskError(f"{folder / 'examples'}: expected at least one <domain>/<id>.json, found none")
    known = {task.id for task in tasks}
    lists = {path.stem.removeprefix("test_"): _read_list(path, known) for path in sorted(folder.glob("test_*.json"))}
    test = lists.pop("all", [task.id for task in tasks])
    tagged = [
        replace(task, tags=(*task.tags, *(label for label, ids in lists.items() if task.id in ids))) for task in tasks
    ]
    revision = git_revision(folder) or git_revision(folder.parent)
    return Suite(name=OSWORLD, tasks=tuple(tagged), splits={"test": test}, revision=revision)


def listed_tasks(suite: Suite, path: Path) -> tuple[Task, ...]:
    """The tasks of a list in OSWorld's format (``{domain: [id, ...]}``), in the list's order.

    Raises:
        TaskError: the file cannot be read, or has an id that is not in the suite.
    """
    return tuple(suite.task(task_id) for task_id in _read_list(path, {task.id for task in suite.tasks}))


def task_ids(path: Path) -> list[str]:
    """The ids of a list in OSWorld's format (``{domain: [id, ...]}``), in its order, of whichever suite.

    Raises:
        TaskError: the file cannot be read, or is no such list.
    """
    try:
        by_domain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: expected {{domain: [task id, ...]}} ({error})") from error
    if not isinstance(by_domain, dict) or not all(isinstance(members, list) for members in by_domain.values()):
        raise TaskError(f"{path}: expected {{domain: [task id, ...]}}, got {json.dumps(by_domain):.40}")
    return [str(i) for members in by_domain.values() for i in members]


def _read_list(path: Path, known: set[str]) -> list[str]:
    """The ids of a list. Raises TaskError as :func:`task_ids`, or if one is not among the known ones."""
    ids = task_ids(path)
    missing = [i for i in ids if i not in known]
    if missing:
        raise TaskError(
            f"{path}: {len(missing)} listed tasks have no file, the first is {missing[0]!r}; add their files, or take "
            "them from the list"
        )
    return ids


def git_revision(folder: Path) -> str:
    """The commit that a checkout is at (hexadecimal); empty if the folder is none, or git is not installed.

    Changes that are not committed do not show here; they do in the tasks' content hashes.
    """
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return revision.stdout.strip() if revision.returncode == 0 else ""
