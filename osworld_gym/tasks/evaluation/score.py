"""Scores one metric of a task with its getters, by our evaluators or by OSWorld's.

Both run in processes of their own, within limits of memory, CPU time and wall time (``own_pool.py``,
``official_pool.py``), because they parse what a policy left behind. OSWorld's get a separate folder for each evaluation
that holds copies of the task's gold files, so that concurrent rollouts of one task do not share files.

On a desktop without programs, the simulated one, a result is our own small data structure: ours read it in this
process.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from osworld_gym.errors import DesktopError, FailureReason, TaskError
from osworld_gym.tasks.evaluation.check import NOT_FROM_DESKTOP, OWN, Check, our_score
from osworld_gym.tasks.evaluation.getters import one_or_many
from osworld_gym.tasks.evaluation.sidecar.calling import RUNS_RESULTS, BrokenResult, Exhausted, Limits
from osworld_gym.tasks.setup.file_cache import gold_file
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.types import Verdict

if TYPE_CHECKING:
    from osworld_gym.tasks.evaluation.official_pool import OfficialEvaluators

logger = logging.getLogger(__name__)

DEADLINE = 180.0  # seconds for one metric with its getters


class Backend(StrEnum):
    """Which evaluators score a task."""

    auto = "auto"  #: ours where we have the metric and its getters, otherwise OSWorld's
    ours = "ours"
    official = "official"  #: always OSWorld's: for scores that are compared with published results


@dataclass(frozen=True, slots=True)
class Evaluators:
    """Which evaluators score, their deadline, and what they may use.

    Args:
        backend: a :class:`Backend` or its name.
        deadline: seconds for one metric with its getters; an episode that exceeds it is not scored and fails as
            ``evaluator_failed``, unless the evaluator was computing for half of that time: then it scores 0.
        official: the pool of OSWorld's evaluators; None: this process's shared pool, started when needed.
        limits: what one metric may use and a result may unpack to; a result that needs more scores 0.

    Raises:
        ValueError: an unknown backend, or a deadline that is not positive.
    """

    backend: Backend | str = Backend.auto
    deadline: float = DEADLINE
    official: OfficialEvaluators | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.backend not in list(Backend):
            raise ValueError(f"Evaluators.backend must be one of {', '.join(Backend)}, got {self.backend!r}")
        object.__setattr__(self, "backend", Backend(self.backend))
        if self.deadline <= 0:
            raise ValueError(f"Evaluators.deadline must be > 0 seconds, got {self.deadline}")


def is_official(task_id: str, check: Check, evaluators: Evaluators) -> bool:
    """Whether OSWorld's evaluators score this check.

    Raises:
        TaskError: no installed evaluator can score it; the message states what is missing and how to install it.
    """
    unknown = check.unknown_to_us()
    own = evaluators.backend == Backend.auto and check.is_users()  # OSWorld's evaluators cannot know it
    if evaluators.backend == Backend.ours or own or (evaluators.backend == Backend.auto and not unknown):
        if unknown:
            raise TaskError(f"task {task_id!r}: {unknown}")
        return False
    from osworld_gym.tasks.evaluation.official_pool import INSTALL_OFFICIAL, find_official

    if evaluators.official is None and find_official() is None:
        raise TaskError(
            f"task {task_id!r}: {unknown or check.func}; OSWorld's evaluators are not installed; {INSTALL_OFFICIAL}"
        )
    return True


def score(run: TaskRun, check: Check, evaluators: Evaluators) -> Verdict:
    """The verdict of one metric. A missing result scores 0; so does an unreadable one, with its ``problem`` set.

    A result that exceeds the evaluators' limits scores 0 too: the policy made it. Its verdict is ``exhausted``.

    Raises:
        TaskError: the metric or a getter is unknown, or its configuration is wrong.
        DesktopError: ``evaluator_failed`` when the evaluator, its rules or its gold files are at fault, or the deadline
            passed; the desktop's own reason when the desktop failed.
    """
    where = f"task {run.task.id!r}, metric {check.func!r}"
    official = is_official(run.task.id, check, evaluators)
    try:
        if official:
            return Verdict(_official_score(run, check, evaluators))
        if not run.desktop.has_shell:
            return Verdict(our_score(run, check))
        from osworld_gym.tasks.evaluation.own_pool import shared_own  # the simulated desktop needs no such processes

        return Verdict(shared_own().check(run, check, evaluators.limits, evaluators.deadline))
    except BrokenResult as error:
        logger.warning("%s: the result cannot be read and is worth 0: %s", where, error)
        return Verdict(0.0, problem=f"{check.func}: {error}", exhausted=isinstance(error, Exhausted))
    except DesktopError as error:
        if error.reason is not FailureReason.evaluator_failed:
            raise
        raise DesktopError(error.reason, f"{where}: {error.message}") from error
    except TaskError:
        raise
    except Exception as error:
        message = f"{where}: {type(error).__name__}: {error}"
        raise DesktopError(FailureReason.evaluator_failed, message) from error


def _official_score(run: TaskRun, check: Check, evaluators: Evaluators) -> float:
    server = run.desktop.server
    if server is None:
        which = check.unknown_to_us() or f"metric {check.func!r} with evaluators=official"
        raise TaskError(
            f"task {run.task.id!r}: {which}; OSWorld's own evaluators require a guest server, which this provider "
            "does not have"
        )
    from osworld_gym.tasks.evaluation.official_pool import shared_official

    pool = evaluators.official or shared_official()
    metrics, getters = pool.known()
    expected = [] if check.expected is None else [check.expected["type"]]
    if check.func in RUNS_RESULTS:
        raise TaskError(
            f"task {run.task.id!r}: metric {check.func!r} is refused, since it imports Python files that the policy "
            "wrote into a process of this machine; leave the task out, or write a metric that runs them in the desktop"
        )
    for name, names in ((check.func, metrics), *((kind, getters) for kind in (check.result["type"], *expected))):
        if name not in names:
            raise TaskError(
                f"task {run.task.id!r}: OSWorld's evaluators at {pool.location.folder} do not know {name!r}; newer "
                f"tasks require a newer checkout: set OSWORLD_ROOT; {OWN}"
            )
    address = urlsplit(server[0])
    chrome, vlc = run.desktop.forwarded(9222), run.desktop.forwarded(8080)
    with tempfile.TemporaryDirectory(prefix="osworld-gym-eval-") as folder:
        _fill(Path(folder), run, check)
        desktop = {
            "host": address.hostname,
            "port": address.port,
            "token": server[1],
            "password": run.desktop.client_password,
            "chromium_port": chrome and chrome[1],
            "vlc_port": vlc and vlc[1],
            "folder": folder,
        }
        question = {
            "func": check.func,
            "result": check.result,
            "expected": check.expected,
            "options": check.options,
            "gold": check.has_gold(),
            "on_desktop": check.expected is not None and check.expected["type"] not in NOT_FROM_DESKTOP,
        }
        score = pool.check(question, desktop, evaluators.deadline, evaluators.limits)
    return 0.0 if score is None else score


def _fill(folder: Path, run: TaskRun, check: Check) -> None:
    """Puts into ``folder`` what OSWorld's getters read there: gold files, and the output that a step stored."""
    for config in (check.result, check.expected or {}):
        if config.get("type") == "cloud_file":
            for url, dest in one_or_many(config):
                target = folder / dest
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(run.files.get(gold_file(run.task.id, url, dest)), target)
    for name, data in run.outputs.items():
        (folder / Path(name).name).write_bytes(data)
