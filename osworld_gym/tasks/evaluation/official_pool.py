"""Runs OSWorld's evaluators in a pool of sidecar processes.

They import many libraries (about 300 MB, several seconds), so they run in a few separate processes shared by all
desktops; desktop, environment and training processes never import them. They are installed by ``osworld-gym
install-official``, or used from the checkout at ``OSWORLD_ROOT``.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from osworld_gym.errors import DesktopError, FailureReason
from osworld_gym.folders import data_folder, osworld_root
from osworld_gym.tasks.evaluation.sidecar.calling import BrokenResult

START = 180.0  # seconds for a sidecar's imports (2 to 10 s on an idle machine)
DEADLINE = 180.0  # seconds for one check
SIZE = 2  # maximum number of sidecars
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


def find_official() -> OfficialLocation | None:
    """The user's OSWorld checkout, else what ``install-official`` installed; None if there is neither.

    ``OSWORLD_OFFICIAL_PYTHON`` overrides the interpreter that runs them.
    """
    python = os.environ.get("OSWORLD_OFFICIAL_PYTHON", sys.executable)
    installed, checkout = data_folder("official"), osworld_root()
    if checkout is not None and (checkout / "desktop_env" / "evaluators").is_dir():
        return OfficialLocation(checkout, python, installed)
    return OfficialLocation(installed, python) if (installed / "desktop_env").is_dir() else None


class Sidecar:
    """One process with the official evaluators. Used by one thread at a time.

    Raises:
        DesktopError: (any method) ``evaluator_failed``: it failed to start, exited, or exceeded the deadline; the
            process is then ended.
    """

    def __init__(self, location: OfficialLocation) -> None:
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in end()
        env = {**os.environ, "PYTHONPATH": location.path, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [location.python, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            cwd=location.folder,  # a checkout's .env and settings are named relative to it
            start_new_session=True,
        )
        self._rest = b""
        ready = self._receive(START)
        if not ready["ready"]:
            self.end()
            message = f"importing the official evaluators failed: {ready['error']}; {INSTALL_OFFICIAL}"
            raise DesktopError(FailureReason.evaluator_failed, message)
        self.metrics, self.getters = frozenset(ready["metrics"]), frozenset(ready["getters"])

    def ask(self, question: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        """Sends one request (JSON) and returns the reply, within ``deadline`` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failed("the official evaluators' process exited") from error
        return self._receive(deadline)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        """Ends the process. May be called twice."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue  # unread input
        self._log.close()

    def _receive(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        end, descriptor = time.monotonic() + deadline, self._process.stdout.fileno()
        while b"\n" not in self._rest:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise self._failed(f"the official evaluators took longer than {deadline:g} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise self._failed("the official evaluators' process exited")
            self._rest += chunk
        line, self._rest = self._rest.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _failed(self, what: str) -> DesktopError:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        self.end()
        return DesktopError(
            FailureReason.evaluator_failed, f"{what}; last line of its log: {lines[-1] if lines else 'none'}"
        )


class OfficialEvaluators:
    """A pool of sidecars, started on demand. Thread-safe; the wait for a free sidecar has a deadline.

    Args:
        location: where the evaluators are; None: :func:`find_official`.
        size: maximum number of processes; a check waits for a free one, for at most its deadline.

    Raises:
        DesktopError: ``evaluator_failed``: OSWorld's evaluators are not installed.
    """

    def __init__(self, location: OfficialLocation | None = None, size: int = SIZE) -> None:
        found = location or find_official()
        if found is None:
            raise DesktopError(
                FailureReason.evaluator_failed, f"OSWorld's evaluators are not installed; {INSTALL_OFFICIAL}"
            )
        self.location = found
        self._free = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[Sidecar] = []
        self._closed = False
        self._known: tuple[frozenset[str], frozenset[str]] | None = None
        atexit.register(self.close)

    def known(self) -> tuple[frozenset[str], frozenset[str]]:
        """Names of OSWorld's metrics and getters; starts a sidecar on the first call."""
        if self._known is None:
            with self._borrow(START) as sidecar:
                self._known = sidecar.metrics, sidecar.getters
        return self._known

    def metric(
        self, name: str, arguments: Sequence[Any], options: Mapping[str, Any] | None = None, deadline: float = DEADLINE
    ) -> float:
        """Calls a metric with values or paths. Raises DesktopError (``evaluator_failed``) if the metric raised."""
        answer = self._ask({"metric": name, "arguments": list(arguments), "options": dict(options or {})}, deadline)
        return float(answer["score"])

    def check(self, check: Mapping[str, Any], desktop: Mapping[str, Any], deadline: float = DEADLINE) -> float | None:
        """Runs one metric of a task with its getters.

        Args:
            check: ``func``, ``result``, ``expected``, ``options``; ``gold``: whether the expected value is gold files;
                ``on_desktop``: whether it is read from the desktop.
            desktop: ``host``, ``port``, ``token`` of the guest server, ``password`` of its account, ``chromium_port``
                and ``vlc_port`` (or None), ``folder`` for the files of this evaluation.

        Returns:
            The score, or None when the result file does not exist.

        Raises:
            BrokenResult: the result exists and cannot be read.
            DesktopError: ``evaluator_failed``: the evaluator, its gold files or its process failed, or the deadline
                passed.
        """
        reply = self._ask({"check": dict(check), "desktop": dict(desktop)}, deadline)
        if "broken" in reply:
            raise BrokenResult(reply["broken"])
        return None if reply.get("missing") else float(reply["score"])

    def close(self) -> None:
        """Ends the sidecars; busy ones end after their current request."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for sidecar in idle:
            sidecar.end()

    def _ask(self, question: Mapping[str, Any], deadline: float) -> dict[str, Any]:
        with self._borrow(deadline) as sidecar:
            answer = sidecar.ask(question, deadline)
        if "error" in answer:
            raise DesktopError(FailureReason.evaluator_failed, f"official: {answer['error']}")
        return answer

    @contextmanager
    def _borrow(self, deadline: float) -> Iterator[Sidecar]:
        sidecar = self.acquire(deadline)
        try:
            yield sidecar
        finally:
            self.release(sidecar)

    def acquire(self, deadline: float) -> Sidecar:
        """A sidecar for the caller alone, until it calls :meth:`release`."""
        if not self._free.acquire(timeout=deadline):
            message = f"no official evaluator was free within {deadline:g} s"
            raise DesktopError(FailureReason.evaluator_failed, message)
        try:
            with self._lock:
                alive = [sidecar for sidecar in self._idle if sidecar.alive]
                for sidecar in self._idle:
                    if sidecar not in alive:
                        sidecar.end()
                self._idle = alive[:-1]
            return alive[-1] if alive else Sidecar(self.location)
        except BaseException:
            self._free.release()
            raise

    def release(self, sidecar: Sidecar) -> None:
        """Returns a sidecar to the pool; one that has exited is dropped."""
        with self._lock:
            if sidecar.alive and not self._closed:
                self._idle.append(sidecar)
            elif sidecar.alive:
                sidecar.end()
        self._free.release()


_shared: list[OfficialEvaluators] = []
_sharing = threading.Lock()


def shared_official() -> OfficialEvaluators:
    """This process's shared pool, created on first use. Raises as :class:`OfficialEvaluators`."""
    with _sharing:
        if not _shared:
            _shared.append(OfficialEvaluators())
        return _shared[0]
