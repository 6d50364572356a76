"""Runs OSWorld's evaluators in a pool of sidecar processes.

They import many libraries (about 300 MB, several seconds), so they run in a few separate processes shared by all
desktops; desktop, environment and training processes never import them. They are installed by ``osworld-gym
install-official``, or used from the checkout at ``OSWORLD_ROOT``.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.folders import data_folder, osworld_root
from osworld_gym.tasks.evaluation.sidecar.calling import BrokenResult, Limits
from osworld_gym.tasks.evaluation.sidecar.pool import SidecarPool
from osworld_gym.tasks.evaluation.sidecar.process import START, Sidecar

DEADLINE = 180.0  # seconds for one check
SIZE = 2  # maximum number of sidecars
SHARE = 2  # of the limits of memory and CPU time: OSWorld's libraries use more of both
LIMITS = Limits()
SCRIPT = Path(__file__).parent / "sidecar" / "official_evaluators.py"
INSTALL_OFFICIAL = "fix: pip install 'osworld-gym[official-eval]', then osworld-gym install-official"


@dataclass(frozen=True, slots=True)
class OfficialLocation:
    """Location of OSWorld's evaluators.

    Args:
        folder: contains ``desktop_env`` (and, if installed by us, the stub of ``easyocr``).
        python: the interpreter with their dependencies.
        stub: a folder with the stub of ``easyocr``, if ``folder`` is a checkout.
    """

    folder: Path
    python: str = sys.executable
    stub: Path | None = None

    @property
    def path(self) -> str:
        """The sidecars' ``PYTHONPATH``: ``folder``, then ``stub``."""
        return os.pathsep.join(str(part) for part in (self.folder, self.stub) if part)


class OfficialNames(NamedTuple):
    """Names of OSWorld's metrics, and of its getters without ``get_``."""

    metrics: frozenset[str]
    getters: frozenset[str]


def find_official() -> OfficialLocation | None:
    """The user's OSWorld checkout, else what ``install-official`` installed; None if there is neither.

    ``OSWORLD_OFFICIAL_PYTHON`` overrides the interpreter that runs them.
    """
    python = os.environ.get("OSWORLD_OFFICIAL_PYTHON", sys.executable)
    installed, checkout = data_folder("official"), osworld_root()
    if checkout is not None and (checkout / "desktop_env" / "evaluators").is_dir():
        return OfficialLocation(checkout, python, installed)
    return OfficialLocation(installed, python) if (installed / "desktop_env").is_dir() else None


class OfficialEvaluators:
    """A pool of sidecars, started on demand. Thread-safe; the wait for a free sidecar has a deadline.

    Args:
        location: where the evaluators are; None: :func:`find_official`.
        size: maximum number of processes; a check waits for a free one, for at most its deadline.

    Raises:
        DesktopError: ``evaluator_failed``: OSWorld's evaluators are not installed.
    """

    def __init__(self, location: OfficialLocation | None = None, size: int = SIZE) -> None:
        place = location or find_official()
        if place is None:
            raise DesktopError(
                FailureReason.evaluator_failed, f"OSWorld's evaluators are not installed; {INSTALL_OFFICIAL}"
            )
        self.location = place
        self.sidecars = SidecarPool(lambda: _start(place), size)
        self._known: OfficialNames | None = None

    def known(self) -> OfficialNames:
        """OSWorld's metrics and getters; starts a sidecar on the first call."""
        if self._known is None:
            with self.sidecars.borrow(START) as sidecar:
                self._known = OfficialNames(frozenset(sidecar.ready["metrics"]), frozenset(sidecar.ready["getters"]))
        return self._known

    def metric(
        self, name: str, arguments: Sequence[Any], options: Mapping[str, Any] | None = None, deadline: float = DEADLINE
    ) -> float:
        """Calls a metric with values or paths. Raises DesktopError (``evaluator_failed``) if the metric raised."""
        question = {"metric": name, "arguments": list(arguments), "options": dict(options or {})}
        return float(self._ask(question, deadline, LIMITS)["score"])

    def check(
        self,
        check: Mapping[str, Any],
        desktop: Mapping[str, Any],
        deadline: float = DEADLINE,
        limits: Limits = LIMITS,
    ) -> float | None:
        """Runs one metric of a task with its getters.

        Args:
            check: ``func``, ``result``, ``expected``, ``options``; ``gold``: whether the expected value is gold files;
                ``on_desktop``: whether it is read from the desktop.
            desktop: ``host``, ``port``, ``token`` of the guest server, ``password`` of its account, ``chromium_port``
                and ``vlc_port`` (or None), ``folder`` for the files of this evaluation.
            deadline: seconds that the check may take.
            limits: as of our evaluators; OSWorld's have ``SHARE`` times the memory and CPU time.

        Returns:
            The score, or None when the result file does not exist.

        Raises:
            BrokenResult: the result exists and cannot be read, or exceeds a limit (:class:`Exhausted`).
            DesktopError: ``evaluator_failed``: the evaluator, its gold files or its process failed, or the deadline
                passed.
        """
        reply = self._ask({"check": dict(check), "desktop": dict(desktop)}, deadline, limits)
        if "broken" in reply:
            raise BrokenResult(reply["broken"])
        return None if reply.get("missing") else float(reply["score"])

    def close(self) -> None:
        """Ends the sidecars; busy ones end after their current request."""
        self.sidecars.close()

    def _ask(self, question: Mapping[str, Any], deadline: float, limits: Limits) -> dict[str, Any]:
        limits = replace(limits, cpu=SHARE * limits.cpu, memory=SHARE * limits.memory)
        try:
            return self.sidecars.ask({**question, "limits": asdict(limits)}, deadline)
        except DesktopError as error:
            raise DesktopError(error.reason, f"official: {error.message}") from error


def _start(location: OfficialLocation) -> Sidecar:
    """A sidecar. A checkout's .env and settings are named relative to its folder, the working directory."""
    env = {**os.environ, "PYTHONPATH": location.path}
    name = "the official evaluators"
    return Sidecar(name, [location.python, str(SCRIPT)], env, location.folder, fix=INSTALL_OFFICIAL)


_shared: list[OfficialEvaluators] = []
_sharing = threading.Lock()
os.register_at_fork(after_in_child=_shared.clear)  # its processes are the parent's


def shared_official() -> OfficialEvaluators:
    """This process's shared pool, created on first use. Raises as :class:`OfficialEvaluators`."""
    with _sharing:
        if not _shared:
            _shared.append(OfficialEvaluators())
        return _shared[0]
