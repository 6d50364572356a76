"""Fault injection: a local desktop and evaluators that fail at a planned call."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.injection.ledger import Attempt
from benchmarks.injection.plans import Kind
from osworld_gym.desktops.local.desktop import LocalDesktop
from osworld_gym.tasks.evaluation.check import Check
from osworld_gym.tasks.evaluation.getters import GETTERS, Getter
from osworld_gym.tasks.evaluation.own_pool import OwnEvaluators
from osworld_gym.tasks.setup.run import TaskRun
from osworld_gym.types import Action, Screenshot

DISK = 64  # MiB of HOME and /tmp, small so that they fill quickly
FILL = "head -c 1G /dev/zero > ~/.full; head -c 1G /dev/zero > /tmp/full; true"
HANG = 120.0  # seconds that a hanging evaluator waits, unless its process is ended before
SOON = 5.0  # seconds for a signal to take effect
GONE, STOPPED = "ZX", "T"  # thread states in /proc


class FaultyDesktop(LocalDesktop):
    """A local desktop that looks up its attempt at each reset and injects that attempt's fault when it is due.

    Args:
        attempt: seed of a reset → the attempt that it starts, or None.
        options: of the local desktop.
    """

    def __init__(self, attempt: Callable[[int], Attempt | None], **options: Any) -> None:
        super().__init__(disk=DISK, **options)
        self._attempt_of = attempt
        self._attempt: Attempt | None = None
        self._calls: Counter[str] = Counter()
        self._timer: threading.Timer | None = None

    def reset(self, seed: int) -> None:
        self._attempt = None
        super().reset(seed)
        self._attempt, self._calls = self._attempt_of(seed), Counter()

    def setup(self, step: Mapping[str, Any]) -> None:
        self._due("setup")
        super().setup(step)

    def perform(self, actions: Sequence[Action]) -> None:
        self._due("perform")
        super().perform(actions)

    def screenshot(self) -> Screenshot:
        self._due("screenshot")
        return super().screenshot()

    def evaluated(self) -> Kind | None:
        """Called by the getters; returns the fault that is due at the verification, or None."""
        return self._due("verify")

    def close(self) -> None:
        timer = self._timer  # a hanging desktop is closed by another thread
        if timer is not None:
            timer.cancel()
        super().close()

    def process(self) -> psutil.Process:
        """Process 1 of the guest. Raises psutil.NoSuchProcess if it has exited."""
        assert self._guest_process is not None
        return psutil.Process(self._guest_process.inside)

    def _due(self, call: str) -> Kind | None:
        """Injects the fault if it is due at this call, after waiting for a pending timer; returns its kind or None."""
        if self._timer is not None:
            self._timer.join()
        number, attempt = self._calls[call], self._attempt
        self._calls[call] += 1
        fault = None if attempt is None else attempt.fault
        if attempt is None or fault is None or (fault.call, fault.number) != (call, number):
            return None
        guest = self.process()
        if fault.kind is Kind.disk_full:
            attempt.injected = True
            self.run(FILL, shell=True)
        elif fault.after:
            self._timer = threading.Timer(fault.after, strike, (fault.kind, guest, attempt))
            self._timer.daemon = True
            self._timer.start()
        else:
            strike(fault.kind, guest, attempt)
        return fault.kind


def strike(kind: Kind, guest: psutil.Process, attempt: Attempt) -> None:
    """Injects the fault into the guest and waits until it takes effect; an evaluator's fault is only recorded."""
    attempt.injected = True
    try:
        if kind is Kind.guest_killed:
            guest.kill()
            _await(guest, GONE)
        elif kind is Kind.guest_frozen:
            guest.suspend()
            _await(guest, STOPPED)
        elif kind is Kind.x_killed:
            (server,) = (child for child in guest.children() if child.name() == "Xvfb")
            server.kill()
            _await(server, GONE)
    except (psutil.NoSuchProcess, ValueError):
        attempt.injected = False  # the process had already exited


def _await(process: psutil.Process, letters: str) -> None:
    """Waits until every thread is in one of these states or has exited, which takes a while on a busy machine."""
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        if set(_states(process.pid)) <= set(letters):
            return
        time.sleep(0.002)  # there is no event for another process's state


def _states(pid: int) -> Iterator[str]:
    """The state letter of each of the process's threads."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            yield path.read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # the thread has exited


def raise_injected(run: TaskRun, config: Mapping[str, Any]) -> Any:  # noqa: ARG001  a getter
    """A getter that fails; at the top of the module, since evaluators run in processes that import it."""
    raise OSError("injected")


def hang_injected(run: TaskRun, config: Mapping[str, Any]) -> Any:  # noqa: ARG001  a getter
    """A getter that hangs until its process is ended at the deadline."""
    threading.Event().wait(HANG)
    raise OSError("injected")


_INJECTED: dict[Kind, Getter] = {Kind.evaluator_raises: raise_injected, Kind.evaluator_hangs: hang_injected}


@contextmanager
def faulty_evaluators() -> Iterator[None]:
    """Inside the context, the getter of a desktop whose fault is due is replaced by one that raises or hangs."""
    original = OwnEvaluators.check

    def check(pool: OwnEvaluators, run: TaskRun, one: Check, *more: Any) -> float:
        kind = run.desktop.evaluated() if isinstance(run.desktop, FaultyDesktop) else None
        if kind in _INJECTED:
            one = replace(one, result={"type": str(kind)})
        return original(pool, run, one, *more)

    GETTERS.update({str(kind): getter for kind, getter in _INJECTED.items()})
    OwnEvaluators.check = check  # type: ignore[method-assign]
    try:
        yield
    finally:
        OwnEvaluators.check = original  # type: ignore[method-assign]
        for kind in _INJECTED:
            del GETTERS[str(kind)]
