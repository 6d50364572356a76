"""Expert log formats by name, and how each is read: ``NAME:FOLDER`` in ``expert.logs`` and ``bepa experts check``."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from pathlib import Path

from bepa_torchrl.experts.readers import agentnet, atif, records
from bepa_torchrl.experts.readers.families import FAMILIES
from bepa_torchrl.experts.readers.run import Outcome, Run
from bepa_torchrl.experts.readers.run_folder import scan_runs
from bepa_torchrl.experts.trace import ExpertTrace, TraceError
from osworld_gym.errors import did_you_mean
from osworld_gym.extensions import Registry
from osworld_gym.tasks.task import Task

_log = logging.getLogger(__name__)

AUTO = "auto"

#: (folder, tasks) → all traces of these tasks in the folder, including failed ones; raises TraceError
Reader = Callable[[Path, Iterable[Task]], list[ExpertTrace]]


@dataclass(frozen=True, slots=True)
class RunReader:
    """A reader that finds runs first, so that they can be checked without loading their screenshots.

    Args:
        name: the name of the format.
        scan: a folder → all runs below it, by task id; those that cannot be read have a reason in ``skipped``.
    """

    name: str
    scan: Callable[[Path], list[Run]]

    def __call__(self, folder: Path, tasks: Iterable[Task]) -> list[ExpertTrace]:
        """All traces of the tasks, by task id, including failed ones; raises as :meth:`read`."""
        return self.read(folder, tasks)

    def read(
        self, folder: Path, tasks: Iterable[Task], *, successes: bool = False, images: bool = True
    ) -> list[ExpertTrace]:
        """The traces of the tasks, by task id. Runs that cannot be read are logged and left out.

        Args:
            folder: contains the runs.
            tasks: runs of other tasks are ignored.
            successes: only the successful ones, so that no other screenshots are loaded; there may be none.
            images: whether to load the screenshots; False: their hashes only, which suffice for plans.

        Raises:
            TraceError: there is no run of these tasks, or none that can be read.
        """
        runs = self._runs(folder, tasks)
        traces, reasons = [], []
        failed = 0
        for task, run in runs:
            if successes and not run.skipped and run.outcome != Outcome.success:
                failed += 1
                continue
            try:
                traces.append(run.trace(task.instruction, task.id, images=images))
            except TraceError as error:
                reasons.append(run.skipped or str(error))
        if reasons:
            many = "; ".join(f"{count} × {reason}" for reason, count in Counter(reasons).most_common(3))
            message = f"{folder}: {len(reasons)} of {len(runs)} runs cannot be used: {many}"
            if not traces and not failed:
                raise TraceError(f"{message}; `bepa experts check {self.name}:{folder}` lists them")
            _log.warning("%s", message)
        return traces

    def solved(self, folder: Path, tasks: Iterable[Task]) -> bool:
        """Whether a run solved one of the tasks; no screenshot is loaded.

        Raises:
            TraceError: there is no run of these tasks.
        """
        return any(not run.skipped and run.outcome == Outcome.success for _, run in self._runs(folder, tasks))

    def _runs(self, folder: Path, tasks: Iterable[Task]) -> list[tuple[Task, Run]]:
        """The runs of the tasks, each with its task. Raises TraceError if there is none."""
        known = {task.id: task for task in tasks}
        scanned = self.scan(folder)
        runs = [(task, run) for run in scanned if (task := known.get(task_of(run, known))) is not None]
        if not runs:
            raise TraceError(
                f"{folder}: no run of any of the {len(known)} tasks ({len(scanned)} other runs found); name the folder "
                "of each run by its task's id, as in <task id>/traj.jsonl, or choose the suite and split of these runs"
            )
        return runs


def task_of(run: Run, known: Iterable[str]) -> str:
    """The task of a run: as its log names it, or the deepest of its folders that is named by a known task."""
    ids = set(known)
    names = [run.task_id, *reversed(run.run.split("#")[0].split("/"))]
    return next((name for name in names if name in ids), run.task_id)


def _scan_auto(folder: Path) -> list[Run]:
    """All runs below a folder, of any format."""
    runs = [*scan_runs(folder), *records.scan(folder), *atif.scan(folder), *agentnet.scan(folder)]
    return sorted(runs, key=lambda run: (run.task_id, run.run))


def _family_readers() -> dict[str, Reader]:
    return {family.name: RunReader(family.name, partial(scan_runs, family=family)) for family in FAMILIES}


#: name → its reader
READERS: Registry[Reader] = Registry(
    "bepa_torchrl.readers",
    {
        AUTO: RunReader(AUTO, _scan_auto),
        **_family_readers(),
        "agentnet": RunReader("agentnet", agentnet.scan),
        "atif": RunReader("atif", atif.scan),
        "records": RunReader("records", records.scan),
    },
    expects="a function of (folder, tasks)",
)


def read_all(name: str, folder: Path, tasks: Iterable[Task]) -> list[ExpertTrace]:
    """What a reader that is a plain function returns, which may have traces of other tasks.

    Args:
        name: the reader's.
        folder: contains the logs.
        tasks: the tasks.

    Raises:
        TraceError: the function takes other arguments, or returns something else than traces.
    """
    read = find_reader(name)
    try:
        signature(read).bind(folder, tasks)
    except TypeError as error:
        raise TraceError(f"the reader {name!r}: expected a function of (folder, tasks): {error}") from error
    traces = read(folder, tasks)
    if not isinstance(traces, Iterable):
        raise TraceError(f"the reader {name!r}: expected a list of ExpertTrace, got {type(traces).__name__}")
    found = list(traces)
    wrong = next((each for each in found if not isinstance(each, ExpertTrace)), None)
    if wrong is not None:
        raise TraceError(f"the reader {name!r}: expected a list of ExpertTrace, got one with a {type(wrong).__name__}")
    return found


def reader_names() -> list[str]:
    """The names of all readers, sorted; none is imported."""
    return sorted(READERS)


def find_reader(name: str) -> Reader:
    """The reader of this name; an entry point is imported now.

    Raises:
        TraceError: there is none. ExtensionError: its entry point is unusable.
    """
    if name not in READERS:
        known = reader_names()
        raise TraceError(f"no reader {name!r}{did_you_mean(name, known)}; expected {', '.join(known)}")
    return READERS[name]
