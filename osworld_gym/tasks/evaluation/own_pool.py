"""Runs our getters and metrics in a pool of processes with limits of memory and CPU time.

What a policy left behind may unpack to gigabytes or keep a parser busy for minutes; here that ends one small process
and scores 0. The processes are started on demand and kept, as a request takes a millisecond and a start a second.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial, reduce
from pathlib import Path
from typing import Any

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation.check import Check
from osworld_gym.tasks.evaluation.getters import GETTERS
from osworld_gym.tasks.evaluation.metrics import METRICS
from osworld_gym.tasks.evaluation.sidecar.blobs import Blobs
from osworld_gym.tasks.evaluation.sidecar.calling import BrokenResult, Limits
from osworld_gym.tasks.evaluation.sidecar.pool import SidecarPool
from osworld_gym.tasks.evaluation.sidecar.process import Sidecar
from osworld_gym.tasks.evaluation.sidecar.served_desktop import serve
from osworld_gym.tasks.setup.run import TaskRun

SIZE = 4  # maximum number of processes
MODULE = "osworld_gym.tasks.evaluation.sidecar.own_evaluators"


class OwnEvaluators:
    """A pool of processes with our evaluators. Thread-safe.

    Args:
        size: maximum number of processes; a check waits for a free one, for at most its deadline.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._pool = SidecarPool(_start, size)

    def check(self, run: TaskRun, check: Check, limits: Limits, deadline: float) -> float:
        """Runs one metric of a task with its getters.

        Args:
            run: the task on its desktop.
            check: the metric and its getters.
            limits: what they may use.
            deadline: seconds; calls of the desktop have deadlines of their own.

        Raises:
            BrokenResult: the result exists and cannot be read, or exceeds a limit (:class:`Exhausted`).
            TaskError: a getter or its configuration is wrong, or another process cannot import it.
            DesktopError: ``evaluator_failed``: the evaluator, its gold files or its process failed, or the deadline
                passed; the desktop's own reason when the desktop failed.
        """
        kinds = [config["type"] for config in (check.result, check.expected) if config is not None]
        blobs = Blobs()
        try:
            question = {
                "check": asdict(check),
                "metric": _reference(METRICS[check.func], check.func),
                "getters": {kind: _reference(GETTERS[kind], kind) for kind in kinds},
                "outputs": {name: blobs.add(data) for name, data in run.outputs.items()},
                "task": run.task.to_json(),
                "seed": run.seed,
                "limits": asdict(limits),
            }
            return _score(self._pool.ask(question, deadline, partial(serve, run, blobs)))
        finally:
            blobs.close()

    def close(self) -> None:
        """Ends the processes; busy ones end after their current request."""
        self._pool.close()


def _start() -> Sidecar:
    path = os.pathsep.join(str(Path(part).absolute()) for part in sys.path)
    command = [sys.executable, "-P", "-m", MODULE]  # -P: modules of the working directory do not come first
    return Sidecar("our evaluators", command, {**os.environ, "PYTHONPATH": path}, Path("/"))


def _score(reply: Mapping[str, Any]) -> float:
    if "broken" in reply:
        raise BrokenResult(reply["broken"])
    if "task" in reply:
        raise TaskError(reply["task"])
    if "desktop" in reply:
        reason, message = reply["desktop"]
        raise DesktopError(FailureReason(reason), message)
    return float(reply["score"])


def _reference(function: Callable[..., Any], name: str) -> str:
    """``module:qualified.name`` of a function, by which another process imports it.

    Raises:
        TaskError: it cannot be imported: it is a lambda, local to a function, or of the main program.
    """
    module, path = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    try:
        attribute: object = reduce(getattr, path.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        attribute = None
    if attribute is not function or module == "__main__":
        raise TaskError(
            f"{name!r} is {module}:{path}, which another process cannot import, as evaluators run in processes of "
            "their own; fix: define it at the top level of a module, and not in the main program"
        )
    return f"{module}:{path}"


_shared: list[OwnEvaluators] = []
_sharing = threading.Lock()
os.register_at_fork(after_in_child=_shared.clear)  # its processes are the parent's


def shared_own() -> OwnEvaluators:
    """This process's shared pool, created on first use."""
    with _sharing:
        if not _shared:
            _shared.append(OwnEvaluators())
        return _shared[0]
