"""The oracle of an official task: a written one, ``FAIL`` if it is infeasible, or its own gold files.

OSWorld has a solution for each task that compares files: the gold file that its evaluator downloads. The last kind puts
these files where the evaluator looks, instead of what a policy would have made. It shows that the task can be set up,
that the evaluator's steps run, and that a solution scores 1; nothing about how to reach it. Where an office application
has the file open, which the evaluator's ``postconfig`` saves again, it is closed before and opens the solution after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from osworld_gym.desktops.base import Desktop
from osworld_gym.tasks.evaluation.check import INFEASIBLE, Check
from osworld_gym.tasks.evaluation.getters import one_or_many
from osworld_gym.tasks.evaluation.verify import read_evaluator
from osworld_gym.tasks.setup.file_cache import FileCache, TaskFile, gold_file
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.tasks.suites.osworld.oracles import FAIL, ORACLES, OfficialOracle, end_program
from osworld_gym.tasks.task import Task

#: beside ``compare_…``: metrics that give 1 to a copy of the gold file
OF_TWO_FILES = frozenset({"check_file_exists_and_structure_sim", "check_structure_sim", "check_tabstops"})
#: endings of files that LibreOffice opens
OFFICE = (".xlsx", ".docx", ".pptx", ".odt", ".ods", ".odp")


def oracle_of(task: Task) -> OfficialOracle | None:
    """The oracle of an official task, or None, as for an unsupported one.

    Raises:
        TaskError: the evaluator is malformed.
    """
    if task.unsupported:
        return None
    written = ORACLES.get(task.id[:8])
    if written is not None:
        return written
    if not task.evaluator:
        return None
    if task.evaluator["func"] == INFEASIBLE:
        return FAIL
    return _gold_oracle(task)


def play_official(oracle: OfficialOracle, task: Task, desktop: Desktop, files: FileCache | None = None) -> None:
    """Brings a desktop on which the task is set up into the oracle's final state.

    Raises:
        TaskError: a gold file is missing, and the cache is offline.
        DesktopError: a step failed, or the desktop did.
    """
    run = TaskRun(task, desktop, files or FileCache(), {})
    run.run(oracle.before, sleeps=True)
    for path, gold in oracle.files:
        desktop.write_file(path, run.files.read(gold))
    run.run(oracle.steps, sleeps=True)


def _gold_oracle(task: Task) -> OfficialOracle | None:
    conj, checks = read_evaluator(task)
    wanted = checks[:1] if conj == "or" else checks
    if not wanted or not all(map(_is_solved_by_its_gold_file, wanted)):
        return None
    pairs = dict(pair for check in wanted for pair in _gold_files(task, check))
    reopen = [step for step in task.config if _opens_office(step)]
    before = (end_program("soffice.bin"),) if reopen else ()
    return OfficialOracle(tuple(reopen), before=before, files=tuple(pairs.items()))


def _is_solved_by_its_gold_file(check: Check) -> bool:
    if check.expected is None or (check.result["type"], check.expected["type"]) != ("vm_file", "cloud_file"):
        return False
    same_number = len(one_or_many(check.result)) == len(one_or_many(check.expected))
    return same_number and (check.func.startswith("compare_") or check.func in OF_TWO_FILES)


def _gold_files(task: Task, check: Check) -> Iterator[tuple[str, TaskFile]]:
    assert check.expected is not None
    for (path, _), (url, name) in zip(one_or_many(check.result), one_or_many(check.expected), strict=True):
        yield path, gold_file(task.id, url, name)


def _opens_office(step: Mapping[str, Any]) -> bool:
    parameters = step.get("parameters") or {}
    return step["type"] == "open" and str(parameters.get("path", "")).endswith(OFFICE)
